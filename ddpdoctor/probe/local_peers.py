"""The other ranks of this host, watched through /proc, because a dead or suspended process cannot report itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.probe.proc import STOPPED_SECONDS, read_stat

__all__ = ["LocalPeer", "LocalPeers"]

UNSEEN_SECONDS = 0.7
"""How much later than this rank another one may notice a suspended process, which must still exist then."""


@dataclass
class LocalPeer:
    """One other rank of this host and its supervisor. `started` distinguishes it from a later process with the same pid."""

    rank: int
    pid: int
    started: int
    host: str
    local_rank: int | None = None
    node_rank: int | None = None
    stopped_at: float | None = None

    @property
    def runs(self) -> bool:
        """Whether it exists and is not suspended."""
        stat = read_stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZXTt"

    def observe(self, kind: Kind, problem: str, seen_by: int, phase: str) -> Observation:
        return Observation(
            kind,
            f"rank {self.rank} on {self.host} {problem}: its supervisor, pid {self.pid}",
            ranks=(self.rank,),
            seen_by=seen_by,
            host=self.host,
            node_rank=self.node_rank,
            local_rank=self.local_rank,
            pid=self.pid,
            phase=phase,
        )


class LocalPeers:
    """Checking them is cheap: one small file each."""

    def __init__(self, rank: int, others: Iterable[LocalPeer] = ()) -> None:
        self.rank = rank
        self.others = list(others)

    def update(self, others: Iterable[LocalPeer]) -> None:
        """Watch these as well; the state of those already watched is kept."""
        known = {(peer.pid, peer.started): peer for peer in self.others}
        for peer in others:
            before = known.get((peer.pid, peer.started), peer)
            known[peer.pid, peer.started] = replace(peer, stopped_at=before.stopped_at)
        self.others = list(known.values())

    def forget(self, pids: Collection[int]) -> None:
        """Stop watching these."""
        self.others = [peer for peer in self.others if peer.pid not in pids]

    def look(self, now: float, phase: str) -> Observation | None:
        """The first that is dead, or was suspended for a while; None if all run.

        `phase` is that of this rank: all ranks go through the phases together.
        """
        return next((problem for peer in self.others if (problem := self._look(peer, now, phase))), None)

    def is_gone(self, rank: int, now: float) -> bool:
        """Whether this rank is one of them, and dead or suspended."""
        return any(peer.rank == rank and self._look(peer, now, "") is not None for peer in self.others)

    def _look(self, peer: LocalPeer, now: float, phase: str) -> Observation | None:
        stat = read_stat(peer.pid)
        if stat is None or stat.state in "ZX" or stat.started != peer.started:
            return peer.observe(Kind.DIED, "died", self.rank, phase)
        peer.stopped_at = (peer.stopped_at or now) if stat.state == "T" else None
        if peer.stopped_at is None or now - peer.stopped_at < STOPPED_SECONDS:
            return None
        return peer.observe(Kind.STOPPED, "is stopped (state T)", self.rank, phase)

    def end_stopped(self) -> None:
        """Kill ddpdoctor's own suspended supervisors: their launcher would wait for them long after the verdict."""
        stopped = [peer for peer in self.others if peer.stopped_at is not None]
        if stopped:
            time.sleep(UNSEEN_SECONDS)
        for peer in stopped:
            stat = read_stat(peer.pid)
            if stat is not None and stat.started == peer.started and stat.state == "T":
                try:
                    os.kill(peer.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue  # it is gone, or belongs to another user: the verdict names it

    def lower(self, node_rank: int | None) -> list[int]:
        """The lower ranks of this node whose supervisor still runs."""
        return [
            peer.rank for peer in self.others if peer.rank < self.rank and peer.node_rank == node_rank and peer.runs
        ]
