"""The values of a forward execution: what a value is, what makes it differ between ranks, and what was done to it.

A `Traced` is immutable. One that can be changed in place has a `ref`; the state keeps the present value of each `ref`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.module import Module

__all__ = [
    "NOTHING",
    "OWN",
    "SAME",
    "UNKNOWN",
    "Condition",
    "DiffersBy",
    "Power",
    "Traced",
    "TracedKind",
    "derived",
    "joined",
]


class DiffersBy(Enum):
    """What makes a value differ between the ranks."""

    RANK = "the rank"
    LOCAL_RANK = "the local rank"
    NODE = "the node"
    DATA = "the data of the rank"
    CLOCK = "the clock of the process"
    RANDOM = "a random number of the process"
    SET_ORDER = "the order of a set of strings"
    SHARD = "the shard of the rank"


class TracedKind(Enum):
    """What a value is."""

    UNKNOWN = "unknown"
    CONSTANT = "constant"
    NUMBER = "number"
    TEXT = "text"
    TENSOR = "tensor"
    LIST = "list"
    DICT = "dict"
    SET = "set of strings"
    FUNCTION = "function of the project"
    CLASS = "class of the project"
    EXTERNAL = "function or class of a library"
    METHOD = "method of a value"
    OBJECT = "object of a class of the project"
    MODULE = "nn.Module"
    WRAPPER = "DDP or FSDP"
    PARAMETERS = "parameters of a module"
    PARAMETER = "parameter"
    GRADIENT = "gradient of a parameter"
    BUFFERS = "buffers of a module"
    OPTIMIZER = "optimizer"
    SCALER = "GradScaler"
    SAMPLER = "DistributedSampler"
    LOADER = "DataLoader"
    DATASET = "dataset"
    GROUP = "process group"
    HANDLE = "handle of an asynchronous call"
    MESH = "DeviceMesh"
    OPTIONS = "parsed options"
    GENERATOR = "random generator"
    CONTEXT = "context manager"


NO_ORIGINS: frozenset[DiffersBy] = frozenset()
OWN = frozenset((DiffersBy.DATA, DiffersBy.CLOCK, DiffersBy.RANDOM))
"""What a rank cannot know about another one without communication."""


@dataclass(frozen=True, slots=True)
class Power:
    """How often a value was multiplied by the number of ranks, and by the number of GPUs of one node; negative: divided."""

    world: int = 0
    local: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """One value. What is not `certain` is partly unknown, and no mistake is concluded from it.

    `symbol` is equal for equal computations; `marks` are words that the machines use; `trains` are the refs of the modules
    that a backward pass from the value reaches; `rank_is` is the meaning of a condition: (origin, number).
    """

    kind: TracedKind = TracedKind.UNKNOWN
    origins: frozenset[DiffersBy] = NO_ORIGINS
    certain: bool = False
    symbol: object = None
    constant: Any = None
    ref: int = 0
    items: tuple[Traced, ...] | None = None
    fields: Mapping[str, Traced] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    power: Power | None = Power()
    trains: frozenset[int] = frozenset()
    rank_is: tuple[DiffersBy, object, bool] | None = None
    of: int = 0
    made: ast.AST | None = field(default=None, compare=False)

    @property
    def is_own(self) -> bool:
        """Whether it certainly differs between the ranks in a way that no rank can know of another."""
        return self.certain and bool(self.origins & OWN)

    def has(self, mark: str) -> bool:
        """Whether a machine marked it."""
        return mark in self.marks

    def marked(self, *marks: str) -> Traced:
        """A copy with more marks."""
        return replace(self, marks=self.marks | set(marks))

    def without(self, *marks: str) -> Traced:
        """A copy with fewer marks."""
        return replace(self, marks=self.marks - set(marks))


UNKNOWN = Traced()
NOTHING = Traced(TracedKind.CONSTANT, certain=True, symbol=("constant", None))
SAME = Traced(TracedKind.NUMBER, certain=True)
"""A number that is the same on all ranks."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A branch that the path took: what was tested, where, and with which result."""

    value: Traced
    node: ast.expr
    truth: bool
    module: Module

    @property
    def rank(self) -> tuple[DiffersBy, object] | None:
        """The one rank that takes this path: (RANK or LOCAL_RANK, its number); None if several ranks do."""
        meaning = self.value.rank_is
        return (meaning[0], meaning[1]) if meaning is not None and meaning[2] is self.truth else None

    @property
    def differs(self) -> bool:
        """Whether some ranks take this path and others do not."""
        return self.value.certain and bool(self.value.origins)


def derived(kind: TracedKind, *values: Traced, symbol: object = None, marks: tuple[str, ...] = ()) -> Traced:
    """The result of a pure function of these values."""
    origins = frozenset(o for v in values for o in v.origins)
    trains = frozenset(t for v in values for t in v.trains)
    kept = frozenset(m for v in values for m in v.marks if m in KEPT)
    certain = all(v.certain for v in values)
    power = Power() if all(v.power == Power() for v in values) else None
    made = next(
        (v.made for v in values if v.made is not None and v.origins & {DiffersBy.CLOCK, DiffersBy.RANDOM}), None
    )
    return Traced(kind, origins, certain, symbol, marks=kept | frozenset(marks), power=power, trains=trains, made=made)


KEPT = frozenset(
    (
        "gathered",
        "uneven",
        "own-slice",
        "reduced-loss",
        "dataset-length",
        "agreed",
        "end",
        "scaled",
        "of-loader",
        "ragged",
        "multiple",
        "hashed",
        "group-rank",
        "autograd-gradient",
        "common-file",
        "of-part",
        "of-whole",
        "counted-part",
        "counted-whole",
        "part-mean",
        "mean",
        "sum-of-means",
        "part-over-whole",
        "whole-times-world",
    )
)
"""The marks that a computed value takes over from its operands."""


def joined(one: Traced, other: Traced, condition: Traced | None) -> Traced:
    """The value after two paths met. A condition that differs between the ranks makes the value differ as well."""
    if one == other:
        return one
    if condition is not None and condition.certain and condition.origins & {DiffersBy.RANK, DiffersBy.NODE}:
        for some, none in ((one, other), (other, one)):
            if some.kind is TracedKind.GROUP and none.symbol == ("constant", None):
                return replace(some, origins=some.origins | condition.origins)
    is_agreed = one.has("agreed") and other.has("agreed")
    own = condition.origins if condition is not None and condition.certain and not is_agreed else NO_ORIGINS
    origins = one.origins | other.origins | own
    same_kind = one.kind is other.kind or {one.kind, other.kind} == {TracedKind.CONSTANT, TracedKind.NUMBER}
    kind = one.kind if one.kind is other.kind else TracedKind.NUMBER if same_kind else TracedKind.UNKNOWN
    same_constant = one.constant is other.constant or (one.kind is other.kind and one.constant == other.constant)
    if kind is TracedKind.CONSTANT:
        kind = (
            TracedKind.TEXT if isinstance(one.constant, str) and isinstance(other.constant, str) else TracedKind.NUMBER
        )
    if not same_constant and kind in (
        TracedKind.FUNCTION,
        TracedKind.CLASS,
        TracedKind.EXTERNAL,
        TracedKind.METHOD,
        TracedKind.OBJECT,
        TracedKind.MODULE,
    ):
        kind = TracedKind.UNKNOWN
    certain = bool(own) or (one.certain and other.certain and one.origins == other.origins and same_kind)
    return Traced(
        kind,
        origins,
        certain,
        constant=one.constant if same_constant and kind is not TracedKind.UNKNOWN else None,
        items=None,
        ref=one.ref if one.ref == other.ref else 0,
        fields=_joined_fields(one.fields, other.fields, condition) if same_kind else {},
        marks=_joined_marks(one, other),
        power=one.power if one.power == other.power else None,
        trains=one.trains | other.trains,
        of=one.of if one.of == other.of else 0,
        made=one.made if one.made is other.made else None,
    )


def _joined_marks(one: Traced, other: Traced) -> frozenset[str]:
    """What either path did to one object; a handle that one path has waited for counts as waited for."""
    is_one = one.ref and one.ref == other.ref and one.kind is not TracedKind.HANDLE
    either = (one.marks | other.marks) - _ON_BOTH_PATHS
    return either | (one.marks & other.marks) if is_one else one.marks & other.marks


_ON_BOTH_PATHS = frozenset(("hand-reduced", "reduced-and-accumulated", "scaled", "empty", "all-frozen", "meta"))
"""What counts only if both paths did it."""


def _joined_fields(
    one: Mapping[str, Traced], other: Mapping[str, Traced], condition: Traced | None
) -> dict[str, Traced]:
    keys = one.keys() | other.keys()
    return {k: joined(one.get(k, UNKNOWN), other.get(k, UNKNOWN), condition) for k in keys}
