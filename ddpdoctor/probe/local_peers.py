"""The other ranks of this host, watched through /proc: they need not be able to say that they died or were stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.proc import STOPPED_SECONDS, read_stat

__all__ = ["LocalPeer", "LocalPeers"]

UNSEEN_SECONDS = 0.7
"""How much later than this rank another one may see that a process is stopped, which must not be dead by then."""


@dataclass
class LocalPeer:
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


class LocalPeers:
    """Look at them as often as you like: one small file each."""

    def __init__(self, rank: int, others: Iterable[LocalPeer] = ()) -> None:
        self.rank = rank
        self.others = list(others)

    def update(self, others: Iterable[LocalPeer]) -> None:
        """Watch these as well; what was seen of those that were watched before is kept."""
        known = {(each.pid, each.started): each for each in self.others}
        for each in others:
            before = known.get((each.pid, each.started), each)
            known[each.pid, each.started] = replace(each, stopped_at=before.stopped_at)
        self.others = list(known.values())

    def forget(self, pids: Collection[int]) -> None:
        """Watch these no longer."""
        self.others = [each for each in self.others if each.pid not in pids]

    def look(self, now: float, phase: str) -> Observation | None:
        """The first that is dead, or has been stopped for a moment; None when all run.

        `phase` is that of the rank that looks: all ranks go through the phases together.
        """
        return next((seen for each in self.others if (seen := self._look(each, now, phase))), None)

    def is_gone(self, rank: int, now: float) -> bool:
        """Whether this rank is one of them, and dead or stopped."""
        return any(each.rank == rank and self._look(each, now, "") is not None for each in self.others)

    def _look(self, each: LocalPeer, now: float, phase: str) -> Observation | None:
        stat = read_stat(each.pid)
        if stat is None or stat.state in "ZX" or stat.started != each.started:
            return each.observe(Kind.DIED, "died", self.rank, phase)
        each.stopped_at = (each.stopped_at or now) if stat.state == "T" else None
        if each.stopped_at is None or now - each.stopped_at < STOPPED_SECONDS:
            return None
        return each.observe(Kind.STOPPED, "is stopped (state T)", self.rank, phase)

    def end_stopped(self) -> None:
        """End the doctor's own supervisors that are stopped: their launcher would wait for them long after the verdict."""
        stopped = [each for each in self.others if each.stopped_at is not None]
        if stopped:
            time.sleep(UNSEEN_SECONDS)
        for each in stopped:
            stat = read_stat(each.pid)
            if stat is not None and stat.started == each.started and stat.state == "T":
                try:
                    os.kill(each.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue  # it is gone, or it is another user's: the verdict has named it

    def lower(self, node_rank: int | None) -> list[int]:
        """The lower ranks of this node whose supervisor still runs."""
        return [
            each.rank for each in self.others if each.rank < self.rank and each.node_rank == node_rank and each.runs
        ]
