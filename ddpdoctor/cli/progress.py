"""Progress of long work on standard error: one line that is rewritten on a terminal, one line per phase in a log."""

from __future__ import annotations

import sys

__all__ = ["ConsoleListener"]

CLEAR = "\r\x1b[K"


class ConsoleListener:
    """Shows progress unless `is_quiet`, and every notice."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    def phase(self, text: str) -> None:
        """Show what happens from now on."""
        self._write(f"{CLEAR}{text} …" if sys.stderr.isatty() else f"ddpdoctor: {text}\n")

    def step(self, text: str) -> None:
        """Show how far a phase has come, on a terminal only: a log would fill with it."""
        if sys.stderr.isatty():
            self.phase(text)

    def end(self) -> None:
        """Clear the line."""
        if sys.stderr.isatty():
            self._write(CLEAR)

    def notice(self, text: str) -> None:
        """Print one line."""
        print(f"ddpdoctor: {text}", file=sys.stderr)

    def _write(self, text: str) -> None:
        if not self._is_quiet:
            sys.stderr.write(text)
            sys.stderr.flush()
