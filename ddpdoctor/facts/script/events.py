"""What a statement may do that the other ranks notice: calls worth rehearsing, and which functions lead to them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddpdoctor.facts.script.index import Function, inner
from ddpdoctor.facts.script.module import Module
from ddpdoctor.facts.script.vocabulary import COLLECTIVES, METHODS, P2P

__all__ = ["EXITS", "WATCHED", "Matters", "in_order", "name_of"]

WATCHED = (
    COLLECTIVES
    | P2P
    | {
        "dist.init_process_group",
        "dist.destroy_process_group",
        "dist.get_rank",
        "dist.get_world_size",
        "cuda.set_device",
        "torch.accelerator.set_device_index",
        "DistributedSampler",
        "torch.save",
        "torch.load",
        "os.makedirs",
        "os.mkdir",
        "shutil.rmtree",
        "Accelerator",
        "deepspeed.init_distributed",
        "deepspeed.initialize",
        "mp.spawn",
        "mp.Process",
    }
)
"""Short names of calls that a rehearsal writes down."""

EXITS = frozenset(("sys.exit", "os._exit", "exit", "quit"))


def in_order(node: ast.AST) -> list[ast.Call]:
    """The calls in a statement or expression in the order in which they end; bodies of lambdas left out."""
    found = [each for each in inner(node) if isinstance(each, ast.Call)]
    return sorted(found, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))


def name_of(module: Module, call: ast.Call) -> str | None:
    """The name under which a rehearsal writes a call down, None for one that it does not watch."""
    name = module.names.of(call.func)
    if name is not None:
        return name if name in WATCHED or "torchvision.datasets" in name else None
    if not isinstance(call.func, ast.Attribute):
        return "forward" if _is_wrapped(module, call.func) else None
    attr = call.func.attr
    if attr == "backward":
        return "backward" if module.wraps and not _is_unwrapped(call.func.value) else None
    kind = METHODS.get(attr)
    if kind is not None and _fits(module, call.func.value, kind):
        return attr
    return "forward" if _is_wrapped(module, call.func) else None


def _is_unwrapped(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _is_wrapped(module: Module, func: ast.expr) -> bool:
    return bool(module.wrapped) and ast.unparse(func) in module.wrapped


def _fits(module: Module, base: ast.expr, kind: str) -> bool:
    text = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    if kind == "accelerator":
        return "accelerator" in text.lower()
    if kind == "engine":
        is_engine = "engine" in text.lower() and "deepspeed" in module.text
        return is_engine or (text == "trainer" and bool(module.frameworks & {"lightning", "pytorch_lightning"}))
    return True


@dataclass(slots=True, eq=False)
class Matters:
    """Which functions and statements of the project can do something that is watched."""

    functions: dict[Function, bool]
    statements: dict[ast.AST, bool]

    @classmethod
    def fresh(cls) -> Matters:
        return cls({}, {})

    def function(self, module: Module, function: Function) -> bool:
        """Whether a function, or one that it calls, does something watched."""
        if function not in self.functions:
            self.functions[function] = False  # a function that calls itself does no more than its other calls
            self.functions[function] = any(self.call(module, c) for s in function.body for c in in_order(s))
        return self.functions[function]

    def call(self, module: Module, call: ast.Call) -> bool:
        if name_of(module, call) is not None:
            return True
        target = module.target(call)
        return target is not None and self.function(target.module, target.function)

    def statement(self, module: Module, statement: ast.AST) -> bool:
        """Whether a statement does something watched, or leaves its block."""
        if statement not in self.statements:
            self.statements[statement] = any(
                isinstance(n, (ast.Return, ast.Break, ast.Continue, ast.Raise))
                or (isinstance(n, ast.Call) and (module.names.of(n.func) in EXITS or self.call(module, n)))
                for n in inner(statement)
            )
        return self.statements[statement]
