"""What NCCL's RAS answers of one communicator."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Peer", "Ras"]


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank as NCCL's RAS knows it. `counts` are its collectives by kind, `trouble` what RAS says is wrong with it."""

    rank: int
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Ras:
    """What NCCL's RAS answered about one communicator. `tallies` say, by kind, how many ranks came to which count."""

    source: str
    name: str = ""
    size: int | None = None
    tallies: dict[str, dict[int, int]] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
