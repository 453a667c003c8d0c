"""NCCL's RAS report of one communicator."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Peer", "Ras"]


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank in NCCL's RAS report. `counts` are its collectives by kind, `trouble` the problem that RAS reports for it."""

    rank: int
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Ras:
    """NCCL's RAS report of one communicator. `tallies` are, by kind of collective, how many ranks have which count."""

    source: str
    name: str = ""
    size: int | None = None
    tallies: dict[str, dict[int, int]] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
