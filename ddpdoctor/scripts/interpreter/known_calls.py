"""The results of known functions (torch, os, the builtins), and of methods and functions whose source was not read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown, known, worst
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, CallResult
from ddpdoctor.scripts.interpreter.operators import (
    MAX_ITEMS,
    PLAIN,
    environment_variable,
    has_unknown,
    result_or_unknown,
)

__all__ = ["known_result", "unread_result"]

_TEXT_METHODS = frozenset(("lower", "upper", "strip", "startswith", "endswith", "isdigit", "split", "format"))
_SAME_CONTENT = frozenset(("cuda", "to", "cpu", "item", "detach", "clone", "eval", "train", "float", "mean", "sum"))
"""Methods of tensors and modules whose result is as unknown as the object."""


def known_result(evaluator: Evaluator, name: str, node: ast.Call, frame: CallFrame) -> object:
    """What a function with this short name returns; NotImplemented if it is not a known one."""
    evaluate = _CALLS.get(name)
    if evaluate is not None:
        return evaluate(evaluator, node, frame)
    if name in assumptions.SAME_ON_ALL_RANKS:
        return Unknown.SAME
    if name in _PURE:
        values = [evaluator.value(a, frame) for a in node.args]
        is_plain = all(known(v) and isinstance(v, PLAIN) and not has_unknown(v) for v in values)
        if not is_plain or node.keywords:
            return worst(*values)
        return result_or_unknown(_PURE[name], *values)
    return NotImplemented


def _range(*arguments: Any) -> list[int]:
    numbers = range(*arguments)
    if len(numbers) > MAX_ITEMS:
        raise ValueError("too long to be evaluated")
    return list(numbers)


def _rank(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    return Unknown.VARIES if _has_group(node, frame) else evaluator.context.rank


def _world_size(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    return Unknown.SAME if _has_group(node, frame) else evaluator.job.world_size


def _has_group(node: ast.Call, frame: CallFrame) -> bool:
    """Whether a call gets a process group other than the default one."""
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(
        not (isinstance(g, ast.Constant) and g.value is None)
        and frame.module.names.of(g) not in ("dist.group.WORLD", "dist.GroupMember.WORLD")
        for g in given
    )


def _getenv(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    if not node.args:
        return Unknown.SAME
    return environment_variable(evaluator, evaluator.value(node.args[0], frame), frame)


def _device(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    values = [evaluator.value(a, frame) for a in (*node.args, *(k.value for k in node.keywords))]
    if not values or not known(values[0]):
        return worst(*values)
    if isinstance(values[0], int):
        return TorchDevice("cuda", values[0])
    if isinstance(values[0], TorchDevice):
        return values[0]
    if not isinstance(values[0], str):
        return Unknown.SAME
    kind, _, index = values[0].partition(":")
    if len(values) > 1:
        return TorchDevice(kind, values[1])
    return TorchDevice(kind, int(index) if index.isdigit() else index or None)


def _random(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    return Unknown.SAME if assumptions.draws_same_numbers(frame.module) else Unknown.DATA


def _exists(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    """A file of the rank's own may be there on some ranks only; one that all ranks name alike is there for all or for none."""
    if not node.args:
        return Unknown.SAME
    path = evaluator.value(node.args[0], frame)
    return Unknown.DATA if known(path) and evaluator.differs_by_rank(node.args[0], frame) else worst(path)


def _constantly(value: object) -> Callable[[Evaluator, ast.Call, CallFrame], object]:
    return lambda evaluator, node, frame: value


def _started(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    return assumptions.process_start_succeeds()


def _gpu_count(evaluator: Evaluator, node: ast.Call, frame: CallFrame) -> object:
    return assumptions.gpus_on_node(evaluator.job)


_CALLS: dict[str, Callable[[Evaluator, ast.Call, CallFrame], object]] = {
    "dist.get_rank": _rank,
    "dist.get_world_size": _world_size,
    "dist.get_node_local_rank": lambda evaluator, node, frame: evaluator.context.local_rank,
    "dist.is_available": _started,
    "dist.is_initialized": _started,
    "dist.is_torchelastic_launched": lambda evaluator, node, frame: not evaluator.job.spawned,
    "dist.GroupMember": _constantly(Unknown.SAME),
    "os.getenv": _getenv,
    "os.environ.setdefault": _getenv,
    "torch.device": _device,
    "cuda.is_available": _started,
    "torch.accelerator.is_available": _started,
    "cuda.device_count": _gpu_count,
    "torch.accelerator.device_count": _gpu_count,
    "cuda.current_device": _constantly(Unknown.VARIES),
    "horovod.torch.rank": lambda evaluator, node, frame: evaluator.context.rank,
    "horovod.torch.local_rank": lambda evaluator, node, frame: evaluator.context.local_rank,
    "horovod.torch.size": lambda evaluator, node, frame: evaluator.job.world_size,
    "socket.gethostname": _constantly(Unknown.VARIES),
    "os.getpid": _constantly(Unknown.VARIES),
    "time.time": _constantly(Unknown.VARIES),
    "time.perf_counter": _constantly(Unknown.VARIES),
    "random.random": _random,
    "torch.rand": _random,
    "torch.randn": _random,
    "torch.randint": _random,
    "os.path.exists": _exists,
    "os.path.isfile": _exists,
    "os.path.isdir": _exists,
    "print": _constantly(None),
    "dict": _constantly(Unknown.SAME),
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
    "range": _range,
    "list": list,
    "tuple": tuple,
    "set": set,
    "sorted": sorted,
    "reversed": lambda items: list(reversed(items)),
    "enumerate": lambda items: list(enumerate(items)),
    "sum": sum,
}


def unread_result(evaluator: Evaluator, node: ast.Call, last: str, frame: CallFrame) -> object:
    """What a method, or a function whose source was not read, returns; `last` is the last part of its name."""
    operands = [
        evaluator.value(a, frame)
        for a in (*node.args, *(k.value for k in node.keywords))
        if not isinstance(a, ast.Starred)
    ]
    if last == "parse_args" and isinstance(node.func, ast.Attribute):
        return CallResult("parse_args", node, frame)
    if assumptions.synchronizes(last):
        return Unknown.SAME
    if not isinstance(node.func, ast.Attribute):
        return worst(*operands)
    base = evaluator.value(node.func.value, frame)
    if isinstance(base, str) and last in _TEXT_METHODS:
        is_plain = all(isinstance(o, (str, int)) and not isinstance(o, Unknown) for o in operands)
        return result_or_unknown(getattr(base, last), *operands) if is_plain else worst(*operands)
    if last in _SAME_CONTENT:
        return worst(base, *[o for o in operands if o is Unknown.DATA]) if not known(base) else Unknown.SAME
    return worst(base, *operands)
