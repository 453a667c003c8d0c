"""The end of a rehearsal inside a rank: an exception at the boundary of a step; a script that swallows it is noticed."""

from __future__ import annotations

import os
import signal
import time

from ddpdoctor.rehearsal.hook import executed
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import place

__all__ = ["RehearsalEnd", "Steps", "steps"]


BUSY_FACTOR = 4
"""How many times longer a script with short steps may run on a machine that gives it little CPU time."""
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
        self.count += 1
        if not self._first:
            self._first, self._first_of_cpu = time.monotonic(), time.process_time()
        channel().say("step", count=self.count, at=place())
        if self.count <= REPORTED_STEPS:
            executed.report()
        if self.count >= self.wanted and (self.is_strict or self._has_taken_long()):
            self.end()

    def _has_taken_long(self) -> bool:
        """Whether the steps have taken enough time: on a busy machine, that of this process counts, within a limit."""
        passed = time.monotonic() - self._first
        has_used = time.process_time() - self._first_of_cpu > self.seconds / 2
        return passed > self.seconds and (has_used or passed > self.seconds * BUSY_FACTOR)

    def end(self) -> None:
        """End the script here.

        Raises:
            RehearsalEnd: always, unless the script has swallowed one before; then the process is killed.
        """
        if self.has_ended:
            channel().say("swallowed", at=place())
            os.kill(os.getpid(), signal.SIGKILL)
        self.has_ended = True
        executed.report()
        channel().say("ended", count=self.count, at=place())
        raise RehearsalEnd(f"rehearsed {self.count} steps")

    def check(self) -> None:
        """Called before each collective: after the end there is none."""
        if self.has_ended:
            raise RehearsalEnd(f"rehearsed {self.count} steps")


_steps: Steps | None = None


def steps() -> Steps:
    """The counter of this process."""
    global _steps
    if _steps is None:
        _steps = Steps()
    return _steps
