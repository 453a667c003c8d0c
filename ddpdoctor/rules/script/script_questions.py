"""Questions that several script rules ask: values on each rank, how the job is started, which backend it uses."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from functools import lru_cache

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, RankContext
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module

__all__ = [
    "Start",
    "argument",
    "backends",
    "each_rank",
    "has_more",
    "in_try",
    "is_distributed",
    "is_literal",
    "is_quiet",
    "is_test",
    "last_value",
    "names_in",
    "only_value",
    "readers_at",
    "spread",
    "start_of",
    "value",
]

TESTING = ("pytest", "unittest", "torch.testing")
RANKS = [place.rank for place in TWO_NODES]
LOCAL_RANKS = [place.local_rank for place in TWO_NODES]


@dataclass(frozen=True, slots=True)
class Start:
    """How a launch line starts the script. `nodes` and `per_node` are None if the line does not say."""

    line: LaunchLine
    launcher: LauncherKind
    nodes: int | None
    per_node: int | None

    @property
    def is_torchrun(self) -> bool:
        return self.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY)

    @property
    def gives_ranks(self) -> bool:
        """The launcher sets RANK and hosts the store itself."""
        return self.launcher in (
            LauncherKind.TORCHRUN,
            LauncherKind.LEGACY,
            LauncherKind.ACCELERATE,
            LauncherKind.DEEPSPEED,
        )

    @property
    def is_rank(self) -> bool:
        """Whether the line starts one of several ranks, given in its environment."""
        size = self.line.environ.get("WORLD_SIZE") or ""
        return self.line.environ.get("RANK") is not None and size.isdecimal() and int(size) > 1

    @property
    def world(self) -> int | None:
        """The world size of the launch line."""
        return None if self.nodes is None or self.per_node is None else self.nodes * self.per_node


def start_of(module: Module, launch: Launch | None) -> Start | None:
    """The launch line that starts this file, if there is one."""
    for line in launch.lines if launch is not None else ():
        if line.script is None or not _is_same(line.script.path, module.path):
            continue
        layer = line.starter or line.program
        if layer is None:
            continue
        plan = line.plan
        nodes = plan.nnodes[1] if plan is not None and plan.nnodes is not None else None
        return Start(line, layer.launcher, nodes, plan.nproc if plan is not None else None)
    return None


def _is_same(one: str, other: str) -> bool:
    one, other = posixpath.normpath(one), posixpath.normpath(other)
    return one == other or one.endswith(f"/{other}")


@lru_cache(maxsize=256)
def readers_at(module: Module, places: tuple[RankContext, ...], trusting: bool) -> tuple[RankEvaluator, ...]:
    """An evaluator for each of these ranks, cached per file."""
    return tuple(RankEvaluator(module, place, trusting=trusting) for place in places)


def each_rank(
    module: Module, node: ast.expr, places: tuple[RankContext, ...] = TWO_NODES, *, trusting: bool = False
) -> list[object]:
    """The value of an expression on each rank of the simulated job; if the first is Unknown, all are."""
    readers = readers_at(module, places, trusting)
    first = readers[0].value(node)
    return [first] * len(readers) if isinstance(first, Unknown) else [first, *(r.value(node) for r in readers[1:])]


def value(module: Module, node: ast.expr | None) -> object:
    """The value of an expression if it is the same on all ranks; None for None."""
    if node is None:
        return None
    values = each_rank(module, node)
    first = values[0]
    return first if all(type(v) is type(first) and v == first for v in values[1:]) else Unknown.VARIES


def argument(call: ast.Call, position: int | None, *names: str) -> ast.expr | None:
    """The expression that a call passes for a parameter, by name or by position."""
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    if position is not None and position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args):
        return call.args[position]
    return None


def has_more(call: ast.Call) -> bool:
    """Whether a call passes arguments that the source does not show: *args or **kwargs."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def backends(module: Module) -> set[str] | None:
    """The backends that the file's init_process_group calls name; None if one of them is unknown."""
    names: set[str] = set()
    for call in module.calls("dist.init_process_group"):
        given = argument(call, 0, "backend")
        text = value(module, given)
        if given is None or not isinstance(text, str) or _is_chosen(module, given):
            return None
        names.add(text.lower())
    return names


def is_test(module: Module) -> bool:
    """Whether the file is a unit test: it fakes worlds, runs on one machine, and breaks things on purpose."""
    if any(f"import {name}" in module.text or f"from {name}" in module.text for name in TESTING):
        return True
    classes = (owner for owner in module.index.scopes if isinstance(owner, ast.ClassDef))
    return any((module.names.dotted(b) or "").endswith("TestCase") for owner in classes for b in owner.bases)


def _is_chosen(module: Module, node: ast.expr) -> bool:
    """Whether a value depends on the machine that the script runs on."""
    made = last_value(module, node) if isinstance(node, ast.Name) else node
    if made is None and isinstance(node, ast.Name):
        given = list(_given_for(module, node))
        return not given or any(
            argument_given is None or _is_chosen(module, argument_given) for argument_given in given
        )
    return made is None or any(isinstance(n, (ast.IfExp, ast.BoolOp)) for n in ast.walk(made))


def _given_for(module: Module, name: ast.Name) -> Iterator[ast.expr | None]:
    """What the calls in the file pass for a parameter; None for a value that is unknown."""
    bound = module.names.bindings(name.id, module.index.scope(name))
    function = bound[0].function if bound is not None else None
    if bound is None or function is None or [b.how for b in bound[1]] != [Bound.PARAMETER]:
        yield None
        return
    is_method = isinstance(module.index.parents.get(function), ast.ClassDef)
    for call in module.callers.get(function, ()):
        yield argument_of(call, function, name.id, is_method) or bound[1][0].value


def is_distributed(module: Module) -> bool:
    """Whether the file itself joins a process group or wraps its model, in a world of more than one process."""
    if is_alone(module):
        return False
    return bool(module.calls("dist.init_process_group", "DDP", "FSDP")) or bool(module.spawns)


def is_alone(module: Module) -> bool:
    """Whether the file creates a world of one process, as scripts do that only convert a checkpoint."""
    sizes = [argument(c, None, "world_size") for c in module.calls("dist.init_process_group")]
    return bool(sizes) and all(given is not None and value(module, given) == 1 for given in sizes)


def names_in(node: ast.AST) -> set[str]:
    """The names and attribute names in an expression."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def in_try(module: Module, node: ast.AST) -> bool:
    """Whether an exception at this node is caught in the same function."""
    for parent, child in module.index.enclosing(node):
        if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
            return True
        if parent in module.index.scopes:
            return False
    return False


def last_value(module: Module, node: ast.expr) -> ast.expr | None:
    """The expression that a name holds where it is used: its last plain assignment, in the same or an enclosing block."""
    if not isinstance(node, ast.Name):
        return node
    bound = module.names.bindings(node.id, module.index.scope(node))
    if bound is None:
        return None
    earlier = [b for b in bound[1] if b.line < node.lineno]
    if not earlier or earlier[-1].how is not Bound.VALUE:
        return None
    last = earlier[-1]
    around = {p for p, _ in module.index.enclosing(node)}
    block = module.index.parents.get(last.at)
    return last.value if block in around else None


def only_value(module: Module, name: ast.Name) -> ast.expr | None:
    """The only assignment of a name, if nothing is stored in the object or added to it later."""
    bound = module.names.bindings(name.id, module.index.scope(name))
    made = bound[1][0].value if bound is not None and len(bound[1]) == 1 and bound[1][0].how is Bound.VALUE else None
    stores = (s.value for s in module.index.subscripts if isinstance(s.ctx, (ast.Store, ast.Del)))
    changes = (c.func for m in ("update", "pop", "setdefault") for c in module.method_calls.get(m, ()))
    changed = (*stores, *(f.value for f in changes if isinstance(f, ast.Attribute)))
    return None if any(isinstance(c, ast.Name) and c.id == name.id for c in changed) else made


def spread(module: Module, call: ast.Call) -> dict[str, ast.expr]:
    """What `**options` passes, if the options are a dict that is assigned once and never changed."""
    names = [k.value for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)]
    made = [m for n in names if (m := only_value(module, n)) is not None]
    options: dict[str, ast.expr] = {}
    for mapping in made:
        if isinstance(mapping, ast.Call) and module.names.of(mapping.func) == "dict":
            options |= {k.arg: k.value for k in mapping.keywords if k.arg}
        elif isinstance(mapping, ast.Dict):
            options |= {
                str(k.value): v
                for k, v in zip(mapping.keys, mapping.values, strict=True)
                if isinstance(k, ast.Constant)
            }
    return options


def is_literal(module: Module, node: ast.expr) -> bool:
    """Whether a value is a constant in the file itself, not an option or a parameter."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        return True
    bound = module.names.bindings(node.id, module.index.scope(node)) if isinstance(node, ast.Name) else None
    return bound is not None and all(
        isinstance(b.value, (ast.Constant, ast.JoinedStr)) and isinstance(b.at, ast.Assign) for b in bound[1]
    )


def is_quiet(node: ast.AST) -> bool:
    """Whether a statement or function computes without gradients: `with torch.no_grad():`, or its decorator."""
    texts = [ast.unparse(i) for i in node.items] if isinstance(node, (ast.With, ast.AsyncWith)) else []
    texts += [ast.unparse(d) for d in getattr(node, "decorator_list", ())]
    return any("no_grad" in t or "inference_mode" in t or "set_grad_enabled(False)" in t for t in texts)
