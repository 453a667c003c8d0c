"""What a statement may do that the other ranks notice: calls worth rehearsing, and which functions lead to them."""

from __future__ import annotations

import ast
import re

from ddpdoctor.facts.script.index import Function, inner
from ddpdoctor.facts.script.module import Module
from ddpdoctor.facts.script.vocabulary import COLLECTIVES, METHODS, P2P

__all__ = ["COMPARED", "EXITS", "WATCHED", "Matters", "name_of"]

COMPARED = COLLECTIVES | frozenset(METHODS) | {"backward", "forward", "state_dict"}
"""Names of what all ranks must do together: collectives, and what a wrapped model does in its passes."""

WATCHED = (
    COMPARED
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
        "open",
        "os.makedirs",
        "os.mkdir",
        "shutil.rmtree",
        "pathlib.Path.mkdir",
        "Accelerator",
        "deepspeed.init_distributed",
        "deepspeed.initialize",
        "mp.spawn",
        "mp.Process",
    }
)
"""Short names of calls that a rehearsal writes down."""

EXITS = frozenset(("sys.exit", "os._exit", "exit", "quit"))


_SHARDING = re.compile(r"fsdp_plugin|deepspeed_plugin|FullyShardedDataParallelPlugin|automatic_checkpoint_naming")
"""What makes accelerate's states an affair of all ranks."""


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
    if attr == "mkdir" and _is_path(module, call.func.value):
        return "pathlib.Path.mkdir"
    if attr == "backward":
        return "backward" if module.wraps and not _is_unwrapped(call.func.value) else None
    if attr == "state_dict" and ast.unparse(call.func.value) in module.sharded:
        return "state_dict"
    kind = METHODS.get(attr)
    if kind is not None and _fits(module, call.func.value, kind):
        return attr
    return "forward" if _is_wrapped(module, call.func) else None


def _is_unwrapped(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _is_path(module: Module, base: ast.expr) -> bool:
    """`Path("a")`, `Path("a") / "b"`, or a name of one."""
    if isinstance(base, ast.BinOp):
        return _is_path(module, base.left)
    if isinstance(base, ast.Name):
        bound = module.names.bindings(base.id, module.index.scope(base))
        made = bound[1][0].value if bound is not None and len(bound[1]) == 1 else None
        return isinstance(made, ast.Call) and _is_path(module, made)
    return isinstance(base, ast.Call) and module.names.of(base.func) == "pathlib.Path"


def _made(module: Module, base: ast.expr) -> str | None:
    """The short name of the call whose result a name holds alone."""
    made = module.made_of(base)
    return module.names.of(made.func) if made is not None else None


def _is_wrapped(module: Module, func: ast.expr) -> bool:
    return bool(module.wrapped) and ast.unparse(func) in module.wrapped


def _fits(module: Module, base: ast.expr, kind: str) -> bool:
    text = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    if kind == "sharding accelerator" and not _SHARDING.search(module.text):
        return False  # each process writes and reads for itself then
    if kind.endswith("accelerator"):
        return "accelerator" in text.lower() or _made(module, base) == "Accelerator"
    if kind.endswith("trainer"):
        return _is_trainer(module, base, kind)
    if kind == "engine":
        is_engine = "engine" in text.lower() and "deepspeed" in module.text
        return is_engine or (text == "trainer" and bool(module.frameworks & {"lightning", "pytorch_lightning"}))
    return True


_TRAINERS = {
    "transformers trainer": re.compile(r"^(transformers|trl)\.(\w+\.)*\w*Trainer$"),
    "lightning trainer": re.compile(r"^lightning\.(\w+\.)*Trainer$"),
    "trainer": re.compile(r"^(transformers|trl|lightning)\.(\w+\.)*\w*Trainer$"),
}


def _is_trainer(module: Module, base: ast.expr, kind: str) -> bool:
    """Whether a name holds a Trainer of its framework, or of a class here that is derived from one."""
    made = module.made_of(base) if module.frameworks else None
    alone = ("devices", "num_devices", "gpus")
    if made is not None and any(k.arg in alone and getattr(k.value, "value", None) == 1 for k in made.keywords):
        return False  # a Trainer for one process, as after the training
    own = module.class_of_value(base) if module.frameworks else None
    names = [module.names.of(b) for b in own.bases] if own is not None else [_made(module, base)]
    return any(name is not None and _TRAINERS[kind].match(name) for name in names)


class Matters:
    """Which functions and statements of the project can do something of these names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._functions: dict[Function, bool] = {}
        self._ending: dict[Function, bool] = {}
        self._statements: dict[ast.AST, bool] = {}
        self._calls: dict[ast.AST, list[ast.Call]] = {}

    def calls(self, node: ast.AST) -> list[ast.Call]:
        """The calls in a statement in their order."""
        if node not in self._calls:
            self._calls[node] = in_order(node)
        return self._calls[node]

    def named(self, module: Module, call: ast.Call) -> str | None:
        """The name of a call that is looked for."""
        name = name_of(module, call)
        return name if name in self.names else None

    def function(self, module: Module, function: Function) -> bool:
        """Whether a function, or one that it calls, does something that is looked for."""
        if function not in self._functions:
            self._functions[function] = False  # a function that calls itself does no more than its other calls
            self._functions[function] = any(self.call(module, c) for s in function.body for c in self.calls(s))
        return self._functions[function]

    def call(self, module: Module, call: ast.Call) -> bool:
        """Whether a call does something that is looked for."""
        if self.named(module, call) is not None:
            return True
        made = module.lambda_of(call)
        if made is not None:
            return call not in inner(made.body) and any(self.call(module, c) for c in self.calls(made.body))
        target = module.target(call)
        return (target is not None and self.function(target.module, target.function)) or self._opens(module, call)

    def _opens(self, module: Module, call: ast.Call) -> bool:
        """Whether a `with` enters or leaves an object here that does something of it."""
        is_context = isinstance(module.index.parents.get(call), ast.withitem)
        owner = module.class_of_value(call) if is_context else None
        found = [module.method(owner, name) for name in ("__enter__", "__exit__")] if owner is not None else []
        return any(each is not None and self.function(each.module, each.function) for each in found)

    def runs(self, module: Module, function: Function) -> bool:
        """Whether a function is worth rehearsing: it does something that is looked for, or may end the process."""
        if self.function(module, function):
            return True
        if function not in self._ending:
            self._ending[function] = False  # as above
            self._ending[function] = any(self._ends(module, c) for s in function.body for c in self.calls(s))
        return self._ending[function]

    def _ends(self, module: Module, call: ast.Call) -> bool:
        target = module.target(call)
        return module.names.of(call.func) in EXITS or (target is not None and self.runs(target.module, target.function))

    def acts(self, module: Module, call: ast.Call) -> bool:
        """Whether a call does something that is looked for, may end the process, or runs what a decorator wraps."""
        return self.call(module, call) or self._ends(module, call) or module.parameter_called(call) is not None

    def statement(self, module: Module, statement: ast.AST) -> bool:
        """Whether a statement does something that is looked for, or leaves its block."""
        if statement not in self._statements:
            self._statements[statement] = any(
                isinstance(n, (ast.Return, ast.Break, ast.Continue, ast.Raise))
                or (isinstance(n, ast.Call) and self.acts(module, n))
                for n in inner(statement)
            )
        return self._statements[statement]
