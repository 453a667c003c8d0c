"""The end of a rehearsal inside a rank: an exception at the boundary of a step; a script that swallows it is noticed."""

from __future__ import annotations

import fcntl
import os
import signal
import time

from ddpdoctor.rehearsal.hook import executed
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import place

__all__ = ["RehearsalEnd", "Steps", "steps"]


BUSY_FACTOR = 4
"""How many times longer a script with short steps may run on a machine that gives it little CPU time."""
AHEAD = 2
"""How many steps after its decision the last one is: ranks that train together are at most one step apart."""
REPORTED_STEPS = 4
"""Steps after which the lines that ran are reported at once: a rank that is ended later could not report them any more."""


class RehearsalEnd(BaseException):
    """The rehearsal has seen enough: the script ends here."""


class Steps:
    """Counts the steps of this process and ends it after enough of them.

    `wanted` steps are always made. Without `is_strict`, more are made until `seconds` after the first one: a script with
    short steps comes to its own end; a rank that got little CPU time meanwhile may take up to BUSY_FACTOR times as long.
    """

    def __init__(self) -> None:
        config = channel().config
        self.wanted: int = config.get("steps", 3)
        self.is_strict: bool = config.get("strict", False)
        self.seconds: float = config.get("more_seconds", 5.0)
        self.count = 0
        self.backwards = 0
        self.optimizer_steps = 0
        self.has_ended = False
        self._first = 0.0
        self._first_of_cpu = 0.0

    def backward_done(self) -> None:
        """A backward pass ended. It counts as a step while the script has no optimizer steps."""
        self.backwards += 1
        if not self.optimizer_steps and self.backwards > self.wanted * 8:
            self._step()

    def optimizer_done(self) -> None:
        """An optimizer step ended."""
        self.optimizer_steps += 1
        self._step()

    def _step(self) -> None:
        self.refuse()
        self.count += 1
        if not self._first:
            self._first, self._first_of_cpu = time.monotonic(), time.process_time()
        channel().say("step", count=self.count, at=place())
        if self.count <= REPORTED_STEPS:
            executed.report()
        if self.count >= self.wanted and (self.is_strict or self._is_last()):
            self.end()

    def _is_last(self) -> bool:
        """Whether this is the step after which all ranks end: the first rank that has taken long decides it."""
        agreed = _agreed(None)
        if agreed is None and self._has_taken_long():
            agreed = _agreed(self.count + AHEAD)
        return agreed is not None and self.count >= agreed

    def _has_taken_long(self) -> bool:
        """Whether the steps have taken enough time: on a busy machine, that of this process counts, within a limit."""
        passed = time.monotonic() - self._first
        has_used = time.process_time() - self._first_of_cpu > self.seconds / 2
        return passed > self.seconds and (has_used or passed > self.seconds * BUSY_FACTOR)

    def end(self) -> None:
        """End the script here.

        Raises:
            RehearsalEnd: always.
        """
        self.refuse()
        self.has_ended = True
        executed.report()
        channel().say("ended", count=self.count, at=place())
        raise RehearsalEnd(f"rehearsed {self.count} steps")

    def refuse(self) -> None:
        """Called where a script trains: after the end it has swallowed the exception, and its process is killed."""
        if self.has_ended:
            channel().say("swallowed", at=place())
            os.kill(os.getpid(), signal.SIGKILL)

    def check(self) -> None:
        """Called before each collective: after the end there is none."""
        if self.has_ended:
            raise RehearsalEnd(f"rehearsed {self.count} steps")


def _agreed(wanted: int | None) -> int | None:
    """The last step, which all ranks of this rehearsal share in a file; the first that wants one decides it."""
    path = channel().config.get("last_step")
    if path is None:
        return wanted
    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = int.from_bytes(file.read(8), "little")
        if known or wanted is None:
            return known or None
        file.seek(0)
        file.write(wanted.to_bytes(8, "little"))
    return wanted


_steps: Steps | None = None


def steps() -> Steps:
    """The counter of this process."""
    global _steps
    if _steps is None:
        _steps = Steps()
    return _steps
