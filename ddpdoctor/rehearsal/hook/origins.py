"""Where the values of small tensors and numbers come from: sums over ranks, divisions, tensors gathered without a gradient.

A tensor carries its origin as an attribute, a number that `item()` or `tolist()` gave to the user's code as a subclass of
`int` or `float`. What has no origin is unknown, never wrong.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import Place, frames_of_user, is_of_user

__all__ = [
    "FOLLOWED",
    "ValueOrigin",
    "begin",
    "follow",
    "is_active",
    "item",
    "origin_of",
    "reduced",
    "set_gathered",
    "tolist",
]

ATTRIBUTE = "_ddpdoctor_origin"
MOST_ELEMENTS = 64
"""Divisions of larger tensors are not followed: they are parts of a model."""
MOST_RECORDS = 200
DIVIDES = frozenset(("div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", "__idiv__", "__rtruediv__"))
MULTIPLIES = frozenset(("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"))
KEEPS = frozenset(
    (
        *(
            "clone",
            "detach",
            "to",
            "float",
            "double",
            "half",
            "cpu",
            "cuda",
            "contiguous",
            "view",
            "reshape",
            "flatten",
        ),
        *("__getitem__", "squeeze", "unsqueeze", "t", "transpose", "permute", "expand", "select", "narrow", "clamp"),
        *("clamp_min", "clamp_min_", "clamp_", "maximum", "max", "type_as", "neg", "__neg__", "round", "to_dense"),
    )
)
ADDS = frozenset(
    (
        *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__", "sum"),
        *("cat", "stack", "concat", "vstack", "hstack"),
    )
)
IN_PLACE_ADDS = frozenset(("add_", "__iadd__", "sub_", "__isub__"))
OVERWRITES = frozenset(
    ("zero_", "fill_", "copy_", "div_", "mul_", "__itruediv__", "__imul__", "__idiv__", "__setitem__")
)
RESETS = frozenset(("zero_", "fill_", "copy_", "tensor", "as_tensor", "scalar_tensor"))
COMBINES = frozenset(
    ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "linear", "cosine_similarity", "cdist", "addmm")
)
JOINS = frozenset(("cat", "stack", "concat", "vstack", "hstack"))
FOLLOWED = DIVIDES | MULTIPLIES | KEEPS | ADDS | OVERWRITES | COMBINES | RESETS | {"mean", "unbind", "split", "chunk"}
PERCENT = (100, 100.0)


@dataclass(frozen=True)
class ValueOrigin:
    """What is known of a value.

    `degree` is how many times it was summed over the ranks, less the times that it was divided by their number or by such a
    sum; `summed` and `by_sum` are the places. `divisor` is the number by which it was divided, without a sum since, at
    `divided`. `gathered` is the place of an all_gather that cut off its gradient.
    """

    degree: int = 0
    summed: Sequence[Place] = ()
    by_sum: Sequence[Place] = ()
    divisor: float | None = None
    divided: Sequence[Place] = ()
    gathered: Sequence[Place] = ()


NONE = ValueOrigin()


class _State:
    """What this process knows."""

    def __init__(self) -> None:
        self.world = 0
        self.records = 0
        self.told: set[tuple[object, ...]] = set()
        self.sums: dict[int, tuple[Any, list[Place], list[Place]]] = {}
        """Storages that hold a sum over the ranks: a weak reference, where it was made, where something was added since."""


_state = _State()


def begin(world: int) -> None:
    """Follow values from now on, in a world of this many ranks."""
    _state.world = world


def is_active() -> bool:
    return _state.world > 1


def _say(kind: str, at: Sequence[Place], **fields: Any) -> None:
    key = (kind, tuple(at[:1]), *(str(value) for value in fields.values()))
    if key not in _state.told and _state.records < MOST_RECORDS and at:
        _state.told.add(key)
        _state.records += 1
        channel().say(kind, at=list(at), **fields)


def origin_of(value: Any) -> ValueOrigin | None:
    """What is known of a tensor or number."""
    if isinstance(value, torch.Tensor):
        found = value.__dict__.get(ATTRIBUTE)
    elif isinstance(value, (TracedFloat, TracedInt)):
        found = value.__dict__.get("origin")
    else:
        return None
    return found if isinstance(found, ValueOrigin) else None


def _set(tensor: Any, origin: ValueOrigin | None) -> None:
    if isinstance(tensor, torch.Tensor) and (origin is not None or ATTRIBUTE in tensor.__dict__):
        tensor.__dict__[ATTRIBUTE] = origin


def follow(name: str, args: Any, result: Any) -> None:
    """One call of torch's interface: the origin of its result."""
    if not args or _state.world < 2:
        return
    first = args[0]
    if name in COMBINES:
        _combined(args, result)
        return
    if name in IN_PLACE_ADDS or name in OVERWRITES:
        _changed(name, first, args)
    if name in ("unbind", "split", "chunk") and isinstance(result, (tuple, list)):
        for each in result:
            _set(each, origin_of(first))
        return
    if not isinstance(result, torch.Tensor):
        return
    if name in RESETS:
        source = args[-1] if name not in ("zero_",) else None
        _set(result, origin_of(source))
        return
    if name in DIVIDES:
        if result.numel() <= MOST_ELEMENTS and len(args) > 1:
            pair = (args[1], first) if name == "__rtruediv__" else (first, args[1])
            _set(result, _quotient(*pair, is_trained=result.requires_grad))
    elif name in MULTIPLIES:
        if len(args) > 1:
            _set(result, _product(first, args[1]))
    elif name in JOINS:
        parts = [origin_of(each) for each in first] if isinstance(first, (list, tuple)) else []
        _set(result, _of_parts(parts, is_trained=result.requires_grad))
    elif name == "mean":
        _set(result, _mean(first, result))
    else:
        _set(result, _merged([origin_of(each) for each in args[:2]], args[:2]))


def _of_parts(parts: Sequence[ValueOrigin | None], *, is_trained: bool) -> ValueOrigin | None:
    """The origin of joined tensors: whether parts have lost their gradient, if no other part has one."""
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    return replace(known[0], gathered=()) if is_trained else known[0]


def _mean(value: Any, result: Any) -> ValueOrigin | None:
    """A mean over the elements of a tensor: it is a ratio if there is no gradient, so not a loss."""
    known = origin_of(value)
    if isinstance(value, torch.Tensor) and result.numel() == 1 and value.numel() > 1 and not torch.is_grad_enabled():
        return replace(known or NONE, divisor=float(value.numel()), divided=frames_of_user())
    return known


def _merged(parts: Sequence[ValueOrigin | None], values: Sequence[Any]) -> ValueOrigin | None:
    known = [each for each in parts if each is not None]
    if not known:
        return None
    found = known[0]
    for each in known[1:]:
        found = replace(
            found,
            degree=max(found.degree, each.degree),
            summed=found.summed or each.summed,
            by_sum=found.by_sum or each.by_sum,
            gathered=found.gathered or each.gathered,
        )
    is_alone = len(known) == 1 and all(origin_of(v) is not None or not isinstance(v, torch.Tensor) for v in values)
    return found if is_alone else replace(found, divisor=None, divided=())


def _number(value: Any) -> float | None:
    """The value of a number, or of a tensor with one element."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and type(value) is torch.Tensor:
        with torch._C.DisableTorchFunction():
            return float(value.detach())
    return None


def _quotient(above: Any, below: Any, *, is_trained: bool = False) -> ValueOrigin | None:
    """The origin of `above / below`."""
    over, under = origin_of(above) or NONE, origin_of(below) or NONE
    value = _number(below)
    if under.degree > 0 and under.summed:
        at = frames_of_user() if is_trained and over.degree <= 0 else ()
        return replace(over, degree=over.degree - under.degree, by_sum=at or over.by_sum, divisor=None, divided=())
    if value == _state.world and not isinstance(below, torch.Tensor):
        return replace(over, degree=over.degree - 1, divisor=over.divisor, divided=over.divided)
    at = frames_of_user() if value is not None and value > 1 else []
    if over.degree > 0 and over.summed and value is not None and value > 1:
        _say("sum_divided", at, divisor=value, summed=list(over.summed))
        return over
    if value is None or value < 1:
        return replace(over, divisor=None, divided=()) if over is not NONE else None
    return replace(over, divisor=value, divided=at or frames_of_user())


def _product(one: Any, other: Any) -> ValueOrigin | None:
    """The origin of `one * other`."""
    first, second = origin_of(one), origin_of(other)
    number = other if not isinstance(other, torch.Tensor) else one
    if first is None and second is None:
        is_world = isinstance(number, (int, float)) and number == _state.world
        return replace(NONE, degree=1) if is_world else None
    found = _merged([first, second], (one, other)) or NONE
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        if number == _state.world:
            return replace(found, degree=found.degree + 1)
        if second is None and number in PERCENT:
            return found
    return replace(found, divisor=None, divided=())


def _combined(args: Any, result: Any) -> None:
    """Report gathered tensors without a gradient that meet tensors with one."""
    if not torch.is_grad_enabled() or not isinstance(result, torch.Tensor) or not result.requires_grad:
        return
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    for each in tensors:
        found = origin_of(each)
        if found is not None and found.gathered and not each.requires_grad:
            _say("gathered_without_gradient", found.gathered, used=frames_of_user())


def _storage(tensor: Any) -> int:
    with torch._C.DisableTorchFunction():
        try:
            return int(tensor.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):
            return 0


def _changed(name: str, target: Any, args: Any) -> None:
    """A tensor is changed in place: is something added to a sum over the ranks?"""
    if not _state.sums or not isinstance(target, torch.Tensor) or (torch.is_grad_enabled() and target.requires_grad):
        return
    key = _storage(target)
    known = _state.sums.get(key)
    if known is None:
        return
    if known[0]() is None:
        del _state.sums[key]
    elif name in IN_PLACE_ADDS:
        _state.sums[key] = (known[0], known[1], frames_of_user())
    elif name != "__setitem__" or not (isinstance(args[-1], torch.Tensor) and _storage(args[-1]) == key):
        del _state.sums[key]


def reduced(tensor: Any, operation: str, size: int, at: list[Place], run: Callable[[], Any]) -> Any:
    """Run an all_reduce of a tensor, and note what its value is then. `size` is the number of ranks of the group."""
    if not isinstance(tensor, torch.Tensor) or size < 2 or type(tensor) is not torch.Tensor:
        return run()
    known = origin_of(tensor) or NONE
    is_sum = operation.upper() in ("SUM", "AVG")
    if is_sum and known.divisor is not None and tensor.numel() <= MOST_ELEMENTS:
        channel().say("ratio_reduced", at=list(at), divisor=known.divisor, divided=list(known.divided))
    key = _storage(tensor)
    before = _state.sums.pop(key, None)
    if operation.upper() == "SUM" and before is not None and before[0]() is not None and before[2]:
        _say("reduced_again", at, added=before[2])
    result = run()
    if operation.upper() == "SUM" and size == _state.world:
        _set(tensor, ValueOrigin(degree=known.degree + 1, summed=at))
        if key and len(_state.sums) < MOST_RECORDS:
            _state.sums[key] = (weakref.ref(tensor), list(at), [])
    else:
        _set(tensor, None)
    return result


def set_gathered(given: Any, outputs: Sequence[Any], at: list[Place]) -> None:
    """After an all_gather: its outputs have no gradient, although what was gathered has one."""
    if isinstance(given, torch.Tensor) and given.requires_grad and given.dim() > 0 and torch.is_grad_enabled():
        for each in outputs:
            if isinstance(each, torch.Tensor) and not each.requires_grad:
                _set(each, ValueOrigin(gathered=at))


def _traced(value: Any, origin: ValueOrigin | None) -> Any:
    """A number with an origin; other values are left as they are."""
    if type(value) is int:
        found: Any = TracedInt(value)
    elif type(value) is float:
        found = TracedFloat(value)
    else:
        return value
    found.origin = origin
    return found


def item(func: Any, args: Any, kwargs: Any) -> Any:
    """`tensor.item()`: a number of the user's code keeps the origin of the tensor."""
    value = func(*args, **kwargs)
    return _traced(value, origin_of(args[0])) if _state.world > 1 and _is_called_by_user() else value


def tolist(func: Any, args: Any, kwargs: Any) -> Any:
    """`tensor.tolist()`, like `item`."""
    value = func(*args, **kwargs)
    origin = origin_of(args[0])
    if origin is None or not _is_called_by_user():
        return value
    return [_traced(each, origin) for each in value] if isinstance(value, list) else _traced(value, origin)


def _is_called_by_user() -> bool:
    """Whether the call that torch's mode is handling was made by the user's own code."""
    frame = sys._getframe(3)
    return is_of_user(frame.f_code.co_filename)


def _method(
    name: str, make: Callable[[Any, Any], ValueOrigin | None], plain: Any, *, is_reflected: bool = False
) -> Any:
    original = getattr(plain, name)

    def method(self: Any, other: Any) -> Any:
        value = original(self, other)
        if value is NotImplemented or isinstance(other, torch.Tensor):
            return value
        return _traced(value, make(other, self) if is_reflected else make(self, other))

    method.__name__ = name
    return method


def _sum(one: Any, other: Any) -> ValueOrigin | None:
    return _merged([origin_of(one), origin_of(other)], (one, other))


class TracedFloat(float):
    """A number that was read from a tensor; it is saved as a plain one."""

    origin: ValueOrigin | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float, (float(self),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class TracedInt(int):
    """A whole number that was read from a tensor; it is saved as a plain one."""

    origin: ValueOrigin | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


for _kind, _plain in ((TracedFloat, float), (TracedInt, int)):
    for _name, _make in (("add", _sum), ("sub", _sum), ("mul", _product), ("truediv", _quotient)):
        setattr(_kind, f"__{_name}__", _method(f"__{_name}__", _make, _plain))
        setattr(_kind, f"__r{_name}__", _method(f"__r{_name}__", _make, _plain, is_reflected=True))
