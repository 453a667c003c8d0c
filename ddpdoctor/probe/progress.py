"""Whether a worker makes progress, which distinguishes a slow one (busy machine, cold disk) from a stuck one."""

from __future__ import annotations

import time

from ddpdoctor.probe.proc import ProcStat

__all__ = ["WorkerProgress"]

MOVING_SECONDS = 2.0
"""Without progress for this long, a worker counts as stuck."""
TICKS, FAULTS = 5, 50
"""Waiting costs less CPU time (in units of 10 ms) and fewer page faults than these."""


class WorkerProgress:
    """The last time that a process sent a message, or used a relevant amount of CPU time or memory."""

    def __init__(self) -> None:
        self._moved_at = time.monotonic()
        self._last = (0, 0)

    def note_message(self) -> None:
        """Record a message."""
        self._moved_at = time.monotonic()

    def note(self, stat: ProcStat, now: float) -> None:
        """Record its current state from /proc."""
        ticks, faults = self._last
        if stat.ticks - ticks >= TICKS or stat.faults - faults >= FAULTS:
            self._moved_at = now
            self._last = (stat.ticks, stat.faults)

    def is_seen(self, now: float) -> bool:
        """Whether it has made progress recently."""
        return now - self._moved_at <= MOVING_SECONDS
