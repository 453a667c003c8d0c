"""What known functions return: torch, os, the builtins; and methods of values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpdoctor.scripts.interpreter.loops import REDUCED
from ddpdoctor.scripts.interpreter.operators import MAX_ITEMS, PLAIN, has_unknown, tried, variable
from ddpdoctor.scripts.interpreter.simulated_job import Device, Frame, Made, Unknown, known, worst

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import Reader

__all__ = ["call", "method"]


def call(reader: Reader, name: str, node: ast.Call, frame: Frame) -> object:
    """What a function with this short name returns; NotImplemented for one that is not known."""
    work = _CALLS.get(name)
    if work is not None:
        return work(reader, node, frame)
    if name in _PURE:
        values = [reader.value(a, frame) for a in node.args]
        plain = all(known(v) and isinstance(v, PLAIN) and not has_unknown(v) for v in values)
        if not plain or node.keywords:
            return worst(*values)
        return _bounded(_PURE[name], *values)
    return NotImplemented


def _bounded(work: Callable[..., Any], *values: Any) -> object:
    if work is range:
        found = tried(range, *values)
        return list(found) if isinstance(found, range) and len(found) <= MAX_ITEMS else Unknown.SAME
    return tried(work, *values)


def _rank(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return Unknown.VARIES if _has_group(reader, node, frame) else reader.place.rank


def _world(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return Unknown.SAME if _has_group(reader, node, frame) else reader.job.world_size


def _has_group(reader: Reader, node: ast.Call, frame: Frame) -> bool:
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(
        not (isinstance(g, ast.Constant) and g.value is None)
        and frame.module.names.of(g) not in ("dist.group.WORLD", "dist.GroupMember.WORLD")
        for g in given
    )


def _getenv(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return variable(reader, reader.value(node.args[0], frame), frame) if node.args else Unknown.SAME


def _device(reader: Reader, node: ast.Call, frame: Frame) -> object:
    values = [reader.value(a, frame) for a in (*node.args, *(k.value for k in node.keywords))]
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


def _drawn(reader: Reader, node: ast.Call, frame: Frame) -> object:
    """Random numbers: alike on all ranks where the file gives all of them one seed."""
    seeds = [c.args[0] for c in frame.module.calls("torch.manual_seed", "random.seed") if c.args]
    return Unknown.SAME if seeds and all(isinstance(s, ast.Constant) for s in seeds) else Unknown.DATA


def _fixed(value: object) -> Callable[[Reader, ast.Call, Frame], object]:
    return lambda reader, node, frame: value


_CALLS: dict[str, Callable[[Any, ast.Call, Any], object]] = {
    "dist.get_rank": _rank,
    "dist.get_world_size": _world,
    "dist.get_node_local_rank": lambda reader, node, frame: reader.place.local_rank,
    "dist.is_available": _fixed(True),
    "dist.is_initialized": _fixed(True),
    "dist.is_torchelastic_launched": lambda reader, node, frame: not reader.job.spawned,
    "dist.GroupMember": _fixed(Unknown.SAME),
    "os.getenv": _getenv,
    "os.environ.setdefault": _getenv,
    "torch.device": _device,
    "cuda.is_available": _fixed(True),
    "torch.accelerator.is_available": _fixed(True),
    "cuda.device_count": lambda reader, node, frame: reader.job.local_world_size,
    "torch.accelerator.device_count": lambda reader, node, frame: reader.job.local_world_size,
    "cuda.current_device": _fixed(Unknown.VARIES),
    "horovod.torch.rank": lambda reader, node, frame: reader.place.rank,
    "horovod.torch.local_rank": lambda reader, node, frame: reader.place.local_rank,
    "horovod.torch.size": lambda reader, node, frame: reader.job.world_size,
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


def method(reader: Reader, node: ast.Call, last: str, frame: Frame) -> object:
    """What a method of a value, or an unknown function, returns."""
    operands = [
        reader.value(a, frame)
        for a in (*node.args, *(k.value for k in node.keywords))
        if not isinstance(a, ast.Starred)
    ]
    if last == "parse_args" and isinstance(node.func, ast.Attribute):
        return Made("parse_args", node, frame)
    if REDUCED.search(last):
        return Unknown.SAME
    if not isinstance(node.func, ast.Attribute):
        return _unless_varies(operands)
    base = reader.value(node.func.value, frame)
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
        return tried(getattr(base, last), *operands) if plain else worst(*operands)
    if last in ("cuda", "to", "cpu", "item", "detach", "clone", "eval", "train", "float", "mean", "sum"):
        return worst(base, *[o for o in operands if o is Unknown.DATA]) if not known(base) else Unknown.SAME
    return worst(base, _unless_varies(operands))


def _unless_varies(operands: list[object]) -> Unknown:
    """An unknown function of known values: nothing is known of its result, not even whether the ranks agree."""
    return worst(*operands)
