"""Where the values of small tensors and numbers come from: sums over ranks, divisions, tensors gathered without a gradient.

A tensor carries its origin as an attribute, a number that `item()` or `tolist()` gave to the user's code as a subclass of
`int` or `float`. What has no origin is unknown, never wrong. `plain_numbers` makes the subclasses invisible to code that asks for
the exact type.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import Place, frames_of_user, is_of_user

__all__ = [
    "FOLLOWED",
    "ValueOrigin",
    "accumulated",
    "batch_begins",
    "batches_end",
    "begin",
    "convert",
    "follow",
    "forget",
    "is_active",
    "is_traced",
    "item",
    "origin_of",
    "part_taken",
    "plain",
    "reduced",
    "set_gathered",
    "tolist",
    "used",
    "when_made",
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
MEASURES = frozenset(
    (
        *("sum", "mean", "count_nonzero", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "huber_loss", "norm"),
    )
)
"""Functions that make a small tensor of a batch."""
REORDERS = frozenset(("t", "transpose", "permute"))
SHOWS = frozenset(("__format__", "__repr__", "__str__"))
DECIDES = frozenset(("__lt__", "__le__", "__gt__", "__ge__", "lt", "le", "gt", "ge"))
PAIRS = frozenset(("eq", "ne", "__eq__", "__ne__", "sub", "__sub__", "__rsub__", "mse_loss", "l1_loss"))
FOLLOWED = (
    DIVIDES
    | MULTIPLIES
    | KEEPS
    | ADDS
    | OVERWRITES
    | COMBINES
    | RESETS
    | MEASURES
    | SHOWS
    | DECIDES
    | PAIRS
    | {"unbind", "split", "chunk", "sqrt", "exp", "log", "zeros_like", "empty_like", "ones_like"}
)
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
    loaders: frozenset[int] = frozenset()
    """The data loaders whose batches it was computed from."""
    parts: frozenset[float] = frozenset()
    """The plain numbers by which it was divided, the last time at `parted`."""
    parted: Sequence[Place] = ()
    order: str = ""
    """Of rows that were gathered: `ranks`, the rows of one rank after those of the other."""
    partial: Sequence[Place] = ()
    """Where it was taken out of a DTensor whose ranks hold parts of a sum."""


NONE = ValueOrigin()


class _State:
    """What this process knows."""

    def __init__(self) -> None:
        self.world = 0
        self.records = 0
        self.prepare: Callable[[], None] = lambda: None
        self.told: set[tuple[object, ...]] = set()
        self.loaders: list[int] = []
        """The loaders whose batches are in use, the last one innermost."""
        self.sums: dict[int, tuple[Any, list[Place], list[Place]]] = {}
        """Storages that hold a sum over the ranks: a weak reference, where it was made, where something was added since."""


_state = _State()


def begin(world: int) -> None:
    """Follow values from now on, in a world of this many ranks."""
    _state.world = world


def is_active() -> bool:
    return _state.world > 1


def batch_begins(loader: int) -> None:
    """Numbers that are computed from now on come from a batch of this loader."""
    if loader in _state.loaders:
        _state.loaders.remove(loader)
    _state.loaders.append(loader)


def batches_end(loader: int) -> None:
    """The loader has no further batches."""
    if loader in _state.loaders:
        _state.loaders.remove(loader)


def _of_batch(origin: ValueOrigin | None) -> ValueOrigin | None:
    """The origin, with the loader whose batch is in use."""
    if not _state.loaders:
        return origin
    found = origin or NONE
    return replace(found, loaders=found.loaders | {_state.loaders[-1]})


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
    if name in SHOWS or name in DECIDES:
        used(origin_of(first), "shown" if name in SHOWS else "decided")
        return
    if name in PAIRS:
        _paired(args)
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
        listed = source if isinstance(source, (list, tuple)) else [source]
        _set(result, _merged([origin_of(each) for each in listed], listed))
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
        _set(result, _of_parts(name, parts, is_trained=result.requires_grad))
    elif name == "mean":
        _set(result, _mean(first, result))
    elif name in PAIRS and name not in ADDS:
        return
    else:
        _set(result, _merged([origin_of(each) for each in args[:2]], args[:2]))
        if name in REORDERS or (name == "__getitem__" and isinstance(args[1], (torch.Tensor, list))):
            _lose_order(result)
    if name in MEASURES and result.numel() <= MOST_ELEMENTS:
        _set(result, _of_batch(origin_of(result)))


def _lose_order(tensor: Any) -> None:
    known = origin_of(tensor)
    if known is not None and known.order:
        _set(tensor, replace(known, order=""))


def _of_parts(name: str, parts: Sequence[ValueOrigin | None], *, is_trained: bool) -> ValueOrigin | None:
    """The origin of joined tensors: whether parts have lost their gradient, if no other part has one."""
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    found = replace(known[0], order="ranks" if name == "cat" and {each.order for each in known} == {"rank"} else "")
    return replace(found, gathered=()) if is_trained else found


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
            loaders=found.loaders | each.loaders,
            parts=found.parts | each.parts,
            parted=found.parted or each.parted,
            order="",
            partial=found.partial or each.partial,
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
    if value is not None and value > 1 and over is not NONE and under.degree <= 0:
        over = replace(over, parts=over.parts | {value}, parted=at)
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
        sum_of_ranks = ValueOrigin(
            degree=known.degree + 1, summed=at, loaders=known.loaders, parts=known.parts, parted=known.parted
        )
        _set(tensor, sum_of_ranks)
        if key and len(_state.sums) < MOST_RECORDS:
            _state.sums[key] = (weakref.ref(tensor), list(at), [])
    else:
        _set(tensor, None)
    return result


def accumulated(tensor: Any) -> None:
    """A backward pass adds to this tensor, which may be a sum over the ranks."""
    known = _state.sums.get(_storage(tensor)) if _state.sums else None
    if known is not None and known[0]() is not None:
        _state.sums[_storage(tensor)] = (known[0], known[1], frames_of_user())


def forget(values: Sequence[Any]) -> None:
    """These tensors have values of other ranks now: their origin is unknown."""
    for each in values:
        _set(each, None)


def set_gathered(given: Any, outputs: Sequence[Any], at: list[Place]) -> None:
    """After an all_gather: its outputs have no gradient, although what was gathered has one; each has the rows of one rank."""
    has_rows = isinstance(given, torch.Tensor) and given.dim() > 0 and given.shape[0] > 1
    loses = has_rows and given.requires_grad and torch.is_grad_enabled()
    order = "" if not has_rows or len(outputs) < 1 else "ranks" if len(outputs) == 1 else "rank"
    for each in outputs:
        if isinstance(each, torch.Tensor):
            cut = at if loses and not each.requires_grad else ()
            _set(each, ValueOrigin(gathered=cut, order=order) if cut or order else None)


def _paired(args: Any) -> None:
    """Rows in the order of the ranks that meet as many rows of another origin."""
    if len(args) < 2 or not all(isinstance(each, torch.Tensor) and each.dim() > 0 for each in args[:2]):
        return
    one, other = origin_of(args[0]), origin_of(args[1])
    orders = [each.order if each is not None else "" for each in (one, other)]
    if sorted(orders) == ["", "ranks"] and args[0].shape[0] == args[1].shape[0]:
        _say("rows_paired", frames_of_user(), count=int(args[0].shape[0]))


def used(origin: ValueOrigin | None, kind: str) -> None:
    """A value is shown, or decides: report what is known of it."""
    if origin is None:
        return
    if origin.partial:
        _say("partial_used", frames_of_user(), taken=list(origin.partial))
    if origin.loaders and not origin.loaders & set(_state.loaders):
        _say(
            kind,
            frames_of_user(),
            loaders=sorted(origin.loaders),
            degree=origin.degree,
            parts=sorted(origin.parts),
            summed=list(origin.summed),
            divided=list(origin.parted),
        )


def part_taken(tensor: Any, at: list[Place]) -> None:
    """This tensor is one rank's part of a sum."""
    _set(tensor, replace(origin_of(tensor) or NONE, partial=at))


def when_made(function: Callable[[], None]) -> None:
    """Call this before a number with an origin is made."""
    _state.prepare = function


def _traced(value: Any, origin: ValueOrigin | None) -> Any:
    """A number with an origin; other values are left as they are."""
    _state.prepare()
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
    if _state.world < 2 or not _is_called_by_user():
        return value
    found = _of_batch(origin_of(args[0]))
    if found is not None and found.partial:
        _say("partial_used", frames_of_user(), taken=list(found.partial))
    return _traced(value, found)


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
        if value is NotImplemented and isinstance(other, float):
            value = getattr(float, name)(float(self), other)
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


def _noticing(name: str, kind: str, plain: Any) -> Any:
    """A method that shows the number, or compares it."""
    original = getattr(plain, name)

    def method(self: Any, *args: Any) -> Any:
        if self.__dict__.get("origin") is not None:
            used(self.origin, kind)
        return original(self, *args)

    method.__name__ = name
    return method


def convert(kind: Any, value: Any, *rest: Any) -> Any:
    """`float(value)`, `int(value)`, `round(value)` or `type(value)` in the user's code: the number keeps its origin."""
    if kind is type:
        return {TracedFloat: float, TracedInt: int}.get(type(value), type(value)) if not rest else type(value, *rest)
    result = kind(value, *rest)
    if kind not in (float, int, round) or type(result) not in (float, int) or _state.world < 2:
        return result
    origin = origin_of(value)
    if isinstance(value, torch.Tensor):
        origin = _of_batch(origin)
    return result if origin is None else _traced(result, origin)


def is_traced(value: Any) -> bool:
    """Whether a number has an origin."""
    return isinstance(value, (TracedFloat, TracedInt))


def plain(value: Any) -> Any:
    """The number as its own class; lists and dictionaries with such numbers are copied."""
    if isinstance(value, (TracedFloat, TracedInt)):
        return float(value) if isinstance(value, float) else int(value)
    if type(value) in (list, tuple):
        items = [plain(each) for each in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if type(value) in (dict, OrderedDict):
        pairs = [(key, each, plain(each)) for key, each in value.items()]
        if all(each is new for _, each, new in pairs):
            return value
        copied = type(value)((key, new) for key, _, new in pairs)
        if hasattr(value, "__dict__"):
            vars(copied).update(vars(value))
        return copied
    return value


for _kind, _plain in ((TracedFloat, float), (TracedInt, int)):
    for _name, _make in (("add", _sum), ("sub", _sum), ("mul", _product), ("truediv", _quotient)):
        setattr(_kind, f"__{_name}__", _method(f"__{_name}__", _make, _plain))
        setattr(_kind, f"__r{_name}__", _method(f"__r{_name}__", _make, _plain, is_reflected=True))
    for _name in ("__format__", "__repr__", "__str__"):
        setattr(_kind, _name, _noticing(_name, "shown", _plain))
    for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
        setattr(_kind, _name, _noticing(_name, "decided", _plain))
