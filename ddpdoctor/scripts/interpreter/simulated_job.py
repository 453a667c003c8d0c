"""The simulated job: its size, and the identity of each of its ranks."""

from __future__ import annotations

from functools import lru_cache

from ddpdoctor.light_dataclass import dataclass

__all__ = ["TWO_NODES", "RankContext", "SimulatedJob", "one_node"]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What is equal on all ranks. `spawned`: the ranks were started by mp.spawn, on one node."""

    world_size: int
    local_world_size: int
    spawned: bool = False


@dataclass(frozen=True, slots=True)
class RankContext:
    """The identity of one rank, numbered as torchrun does."""

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
