"""The imagined job that expressions and statements are rehearsed on, and values that stay unknown."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.value_cache import CacheContext, CachedValue
    from ddpdoctor.scripts.syntax.module import Module
    from ddpdoctor.scripts.syntax.nodes import Function

__all__ = [
    "TWO_NODES",
    "CallFrame",
    "CallResult",
    "DeferredArgument",
    "Device",
    "RankContext",
    "SimulatedJob",
    "Unknown",
    "known",
    "one_node",
    "worst",
]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """The imagined job: what all its ranks see alike. `spawned`: started by mp.spawn, on one node."""

    world_size: int
    local_world_size: int
    spawned: bool = False


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank of the imagined job, counted as torchrun counts."""

    rank: int
    local_rank: int
    node_rank: int
    job: SimulatedJob


def _two_nodes() -> tuple[RankContext, ...]:
    job = SimulatedJob(4, 2)
    return tuple(RankContext(rank, rank % 2, rank // 2, job) for rank in range(4))


TWO_NODES = _two_nodes()
"""Two nodes with two GPUs each: the smallest job in which rank, local_rank, node_rank and world sizes all differ."""


@lru_cache(maxsize=64)
def one_node(count: int, *, spawned: bool = False) -> tuple[RankContext, ...]:
    """One node with `count` ranks."""
    job = SimulatedJob(count, count, spawned)
    return tuple(RankContext(rank, rank, 0, job) for rank in range(count))


class Unknown(Enum):
    """A value that a text does not tell. Larger is worse to judge by."""

    SAME = 1
    """Configuration: unknown, and as far as anybody can see the same on all ranks."""
    DATA = 2
    """Comes from the rank's own share of the data: a batch, a loss."""
    VARIES = 3
    """May differ between ranks in a way that cannot be rehearsed."""


@dataclass(frozen=True, slots=True)
class Device:
    """torch.device: `index` None is the current device of that type."""

    type: str
    index: object = None


@dataclass(frozen=True, slots=True, eq=False)
class CallResult:
    """What a call of a known function made: `name` is its short name (`DDP`, `DataLoader`). Equal when of one call."""

    name: str
    call: ast.Call
    frame: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallResult) and other.call is self.call

    def __hash__(self) -> int:
        return id(self.call)


def known(value: object) -> bool:
    """Whether a value was found."""
    return not isinstance(value, Unknown)


def worst(*values: object) -> Unknown:
    """What follows from operands of which one at least is unknown."""
    found = Unknown.SAME
    for each in values:
        if each is Unknown.VARIES:
            return each
        if each is Unknown.DATA:
            found = each
    return found


@dataclass(frozen=True, slots=True, eq=False)
class DeferredArgument:
    """An argument that is read when the parameter is."""

    node: ast.expr
    frame: CallFrame


@dataclass(slots=True, eq=False)
class CallFrame:
    """Where an expression is read: in a function (None: the module's own level), with what its parameters hold.

    `memory` is what was read there already, `context` where what is read is kept for others.
    """

    module: Module
    function: Function | None = None
    bound: dict[str, object] = field(default_factory=dict)
    memory: dict[ast.expr, CachedValue] = field(default_factory=dict)
    cache_context: CacheContext | None = None
