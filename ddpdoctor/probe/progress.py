"""Whether a worker gets anywhere: what tells one that is slow, on a busy machine or a cold disk, from one that is stuck."""

from __future__ import annotations

import time

from ddpdoctor.probe.proc import ProcStat

__all__ = ["WorkerProgress"]

MOVING_SECONDS = 2.0
"""Who has not moved for so long stands still."""
TICKS, FAULTS = 5, 50
"""Less CPU time (in hundredths of a second) and fewer pages than these are what waiting costs."""


class WorkerProgress:
    """The last time that a process told something, or used CPU time or memory worth the name."""

    def __init__(self) -> None:
        self._moved_at = time.monotonic()
        self._last = (0, 0)

    def note_message(self) -> None:
        """It said something."""
        self._moved_at = time.monotonic()

    def note(self, stat: ProcStat, now: float) -> None:
        """Take in what /proc says of it now."""
        ticks, faults = self._last
        if stat.ticks - ticks >= TICKS or stat.faults - faults >= FAULTS:
            self._moved_at = now
            self._last = (stat.ticks, stat.faults)

    def is_seen(self, now: float) -> bool:
        """Whether it has moved lately."""
        return now - self._moved_at <= MOVING_SECONDS
