"""The other ranks of this host, watched through /proc: they need not be able to say that they died or were stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.proc import read_stat

__all__ = ["Neighbour", "Neighbours"]


@dataclass
class Neighbour:
    """One other rank of this host and its supervisor. `started` tells its pid from a later owner's."""

    rank: int
    pid: int
    started: int
    host: str
    local_rank: int | None = None
    node_rank: int | None = None
    stopped_at: float | None = None

    @property
    def runs(self) -> bool:
        """Whether it is there and not stopped."""
        stat = read_stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZXTt"

    def observe(self, kind: Kind, words: str, seen_by: int, phase: str) -> Observation:
        return Observation(
            kind,
            f"rank {self.rank} on {self.host} {words}: its supervisor, pid {self.pid}",
            ranks=(self.rank,),
            seen_by=seen_by,
            host=self.host,
            node_rank=self.node_rank,
            local_rank=self.local_rank,
            pid=self.pid,
            phase=phase,
        )


class Neighbours:
    """Look at them as often as you like: one small file each."""

    def __init__(self, rank: int, others: Iterable[Neighbour] = ()) -> None:
        self.rank = rank
        self.others = list(others)

    def update(self, others: Iterable[Neighbour]) -> None:
        """Watch these from now on; what was seen of those that were watched before is kept."""
        known = {(each.pid, each.started): each for each in self.others}
        self.others = [known.get((each.pid, each.started), each) for each in others]

    def look(self, now: float, phase: str) -> Observation | None:
        """The first that is dead, or has been stopped for a moment; None when all run.

        `phase` is that of the rank that looks: all ranks go through the phases together.
        """
        for each in self.others:
            stat = read_stat(each.pid)
            if stat is None or stat.state in "ZX" or stat.started != each.started:
                return each.observe(Kind.DIED, "died", self.rank, phase)
            if stat.state != "T":
                each.stopped_at = None
                continue
            each.stopped_at = each.stopped_at or now
            if now - each.stopped_at > 0.25:
                return each.observe(Kind.STOPPED, "is stopped (state T)", self.rank, phase)
        return None

    def end_stopped(self) -> None:
        """End the doctor's own supervisors that are stopped: their launcher would wait for them long after the verdict."""
        for each in self.others:
            stat = read_stat(each.pid)
            if each.stopped_at is not None and stat and stat.started == each.started and stat.state == "T":
                try:
                    os.kill(each.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue  # it is gone, or it is another user's: the verdict has named it

    def lower(self, node_rank: int | None) -> list[int]:
        """The lower ranks of this node whose supervisor still runs."""
        return [
            each.rank for each in self.others if each.rank < self.rank and each.node_rank == node_rank and each.runs
        ]
