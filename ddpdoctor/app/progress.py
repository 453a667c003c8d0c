"""Progress and warnings of use cases, which the command line shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["SILENT", "ProgressListener", "reporting"]


class ProgressListener(Protocol):
    """Receives progress and warnings of a use case."""

    def phase(self, text: str) -> None:
        """A phase of long work begins."""

    def step(self, text: str) -> None:
        """A phase has made progress; called often."""

    def end(self) -> None:
        """The long work has ended."""

    def notice(self, text: str) -> None:
        """A line that the user sees at once, even without progress."""

    def warning(self, text: str) -> None:
        """Something that was requested is not done."""

    def error(self, text: str) -> None:
        """Something could not be done, and the exit code says so."""


class _SilentListener:
    """Ignores everything, for callers that show nothing."""

    def phase(self, text: str) -> None:
        """Ignored."""

    def step(self, text: str) -> None:
        """Ignored."""

    def end(self) -> None:
        """Ignored."""

    def notice(self, text: str) -> None:
        """Ignored."""

    def warning(self, text: str) -> None:
        """Ignored."""

    def error(self, text: str) -> None:
        """Ignored."""


SILENT: ProgressListener = _SilentListener()


class _PhaseListener:
    """Passes everything on, and remembers the phase."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener
        self.current = ""
        self.end, self.notice, self.warning, self.error = (
            listener.end,
            listener.notice,
            listener.warning,
            listener.error,
        )

    def phase(self, text: str) -> None:
        """A phase begins."""
        self.current = text
        self._listener.phase(text)

    def step(self, text: str) -> None:
        """A phase has made progress."""
        self.current = text
        self._listener.step(text)


@contextmanager
def reporting(listener: ProgressListener, *, enabled: bool = True) -> Iterator[ProgressListener]:
    """The listener for one piece of long work, which ends with the block; silent unless `enabled`.

    Raises:
        KeyboardInterrupt: with the phase that Ctrl-C interrupted as its argument.
    """
    active = _PhaseListener(listener if enabled else SILENT)
    try:
        yield active
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*interrupt.args or (active.current,)) from interrupt
    finally:
        active.end()
