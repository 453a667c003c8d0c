"""What known functions return: torch, os, the builtins; and methods of values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpdoctor.scripts.interpreter.loops import REDUCED
from ddpdoctor.scripts.interpreter.operators import (
    MAX_ITEMS,
    PLAIN,
    environment_variable,
    has_unknown,
    result_or_unknown,
)
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, CallResult, Device, Unknown, known, worst

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["call", "method"]


def call(evaluator: RankEvaluator, name: str, node: ast.Call, frame: CallFrame) -> object:
    """What a function with this short name returns; NotImplemented for one that is not known."""
    work = _CALLS.get(name)
    if work is not None:
        return work(evaluator, node, frame)
    if name in _PURE:
        values = [evaluator.value(a, frame) for a in node.args]
        plain = all(known(v) and isinstance(v, PLAIN) and not has_unknown(v) for v in values)
        if not plain or node.keywords:
            return worst(*values)
        return _bounded(_PURE[name], *values)
    return NotImplemented


def _bounded(work: Callable[..., Any], *values: Any) -> object:
    if work is range:
        found = result_or_unknown(range, *values)
        return list(found) if isinstance(found, range) and len(found) <= MAX_ITEMS else Unknown.SAME
    return result_or_unknown(work, *values)


def _rank(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> object:
    return Unknown.VARIES if _has_group(evaluator, node, frame) else evaluator.context.rank


def _world(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> object:
    return Unknown.SAME if _has_group(evaluator, node, frame) else evaluator.job.world_size


def _has_group(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> bool:
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(
        not (isinstance(g, ast.Constant) and g.value is None)
        and frame.module.names.of(g) not in ("dist.group.WORLD", "dist.GroupMember.WORLD")
        for g in given
    )


def _getenv(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> object:
    return environment_variable(evaluator, evaluator.value(node.args[0], frame), frame) if node.args else Unknown.SAME


def _device(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> object:
    values = [evaluator.value(a, frame) for a in (*node.args, *(k.value for k in node.keywords))]
    if not values or not known(values[0]):
        return worst(*values)
    if isinstance(values[0], int):
        return Device("cuda", values[0])
    if isinstance(values[0], Device):
        return values[0]
    if not isinstance(values[0], str):
        return Unknown.SAME
    kind, _, index = values[0].partition(":")
    if len(values) > 1:
        return Device(kind, values[1])
    return Device(kind, int(index) if index.isdigit() else index or None)


def _drawn(evaluator: RankEvaluator, node: ast.Call, frame: CallFrame) -> object:
    """Random numbers: alike on all ranks where the file gives all of them one seed."""
    seeds = [c.args[0] for c in frame.module.calls("torch.manual_seed", "random.seed") if c.args]
    return Unknown.SAME if seeds and all(isinstance(s, ast.Constant) for s in seeds) else Unknown.DATA


def _fixed(value: object) -> Callable[[RankEvaluator, ast.Call, CallFrame], object]:
    return lambda evaluator, node, frame: value


_CALLS: dict[str, Callable[[Any, ast.Call, Any], object]] = {
    "dist.get_rank": _rank,
    "dist.get_world_size": _world,
    "dist.get_node_local_rank": lambda evaluator, node, frame: evaluator.context.local_rank,
    "dist.is_available": _fixed(True),
    "dist.is_initialized": _fixed(True),
    "dist.is_torchelastic_launched": lambda evaluator, node, frame: not evaluator.job.spawned,
    "dist.GroupMember": _fixed(Unknown.SAME),
    "os.getenv": _getenv,
    "os.environ.setdefault": _getenv,
    "torch.device": _device,
    "cuda.is_available": _fixed(True),
    "torch.accelerator.is_available": _fixed(True),
    "cuda.device_count": lambda evaluator, node, frame: evaluator.job.local_world_size,
    "torch.accelerator.device_count": lambda evaluator, node, frame: evaluator.job.local_world_size,
    "cuda.current_device": _fixed(Unknown.VARIES),
    "horovod.torch.rank": lambda evaluator, node, frame: evaluator.context.rank,
    "horovod.torch.local_rank": lambda evaluator, node, frame: evaluator.context.local_rank,
    "horovod.torch.size": lambda evaluator, node, frame: evaluator.job.world_size,
    "socket.gethostname": _fixed(Unknown.VARIES),
    "os.getpid": _fixed(Unknown.VARIES),
    "time.time": _fixed(Unknown.VARIES),
    "time.perf_counter": _fixed(Unknown.VARIES),
    "random.random": _drawn,
    "torch.rand": _drawn,
    "torch.randn": _drawn,
    "torch.randint": _drawn,
    "isinstance": _fixed(Unknown.SAME),
    "hasattr": _fixed(Unknown.SAME),
    "print": _fixed(None),
    "dict": _fixed(Unknown.SAME),
}


_PURE: dict[str, Callable[..., Any]] = {
    "int": int,
    "str": str,
    "float": float,
    "bool": bool,
    "len": len,
    "abs": abs,
    "min": min,
    "max": max,
    "range": range,
    "list": list,
    "tuple": tuple,
    "set": set,
    "sorted": sorted,
    "reversed": lambda items: list(reversed(items)),
    "enumerate": lambda items: list(enumerate(items)),
    "sum": sum,
}


def method(evaluator: RankEvaluator, node: ast.Call, last: str, frame: CallFrame) -> object:
    """What a method of a value, or an unknown function, returns."""
    operands = [
        evaluator.value(a, frame)
        for a in (*node.args, *(k.value for k in node.keywords))
        if not isinstance(a, ast.Starred)
    ]
    if last == "parse_args" and isinstance(node.func, ast.Attribute):
        return CallResult("parse_args", node, frame)
    if REDUCED.search(last):
        return Unknown.SAME
    if not isinstance(node.func, ast.Attribute):
        return _unless_varies(operands)
    base = evaluator.value(node.func.value, frame)
    if isinstance(base, str) and last in (
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "isdigit",
        "split",
        "format",
    ):
        plain = all(isinstance(o, (str, int)) and not isinstance(o, Unknown) for o in operands)
        return result_or_unknown(getattr(base, last), *operands) if plain else worst(*operands)
    if last in ("cuda", "to", "cpu", "item", "detach", "clone", "eval", "train", "float", "mean", "sum"):
        return worst(base, *[o for o in operands if o is Unknown.DATA]) if not known(base) else Unknown.SAME
    return worst(base, _unless_varies(operands))


def _unless_varies(operands: list[object]) -> Unknown:
    """An unknown function of known values: nothing is known of its result, not even whether the ranks agree."""
    return worst(*operands)
