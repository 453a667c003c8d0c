"""Progress of long work: one line that renews itself on a terminal, one line a phase in a log; always standard error."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["Progress"]


class Progress:
    """Says what is going on. `quiet` says nothing."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._renews = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\r\x1b[K" if self._renews else "")

    def phase(self, words: str) -> None:
        """What happens from now on."""
        self._write(f"\r\x1b[K{words} …" if self._renews else f"ddpdoctor: {words}\n")

    def step(self, words: str) -> None:
        """How far a phase has come: for a terminal only, a log would fill with it."""
        if self._renews:
            self.phase(words)

    def _write(self, text: str) -> None:
        if text and not self._quiet:
            sys.stderr.write(text)
            sys.stderr.flush()
