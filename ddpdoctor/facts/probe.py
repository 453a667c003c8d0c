"""`probe`: how far each rank got, what it measured, and the evidence of what went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Probe", "RankReport"]


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank at the end of the probe. `phase` is the last phase that it entered."""

    rank: int
    local_rank: int = 0
    node_rank: int = 0
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    phase: str = ""
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Probe(Section):
    """One probe of `world_size` ranks over `backend`."""

    world_size: int = 0
    backend: str = ""
    ranks: tuple[RankReport, ...] = ()
    gaps: tuple[Gap, ...] = ()
