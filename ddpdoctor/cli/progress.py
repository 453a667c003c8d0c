"""Progress on standard error: live rows with elapsed seconds on a terminal, one line per phase in a log.

A finished phase keeps its row until the end, when all rows are cleared. Standard output has none of it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import field

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.timeouts import NoThreadError, start_thread

__all__ = ["ConsoleListener"]

CLEAR = "\r\x1b[K"
UP_AND_CLEAR = "\x1b[A\x1b[2K"
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_FRAMES = "|/-\\"
FRAME_SECONDS = 0.1
PATIENCE_SECONDS = 0.2
"""Phases that take less are not shown."""
MOST_ROWS = 8
NARROWEST = 20


@dataclass
class _Row:
    """One phase on the screen; `seconds` is how long it took, None while it runs."""

    text: str
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None


class ConsoleListener:
    """Shows progress unless `is_quiet`, and every notice, warning and error."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._rows: list[_Row] = []
        self._drawn = 0
        self._lock = threading.Lock()
        self._ticker: threading.Thread | None = None
        self._ended = threading.Event()

    def phase(self, text: str) -> None:
        """Show what happens from now on."""
        if self._is_quiet:
            return
        if not _is_live():
            _write(f"ddpdoctor: {text}\n")
            return
        with self._lock:
            self._finish_row()
            self._rows.append(_Row(text))
        self._tick()

    def step(self, text: str) -> None:
        """Show the progress of a phase, on a terminal only: it would fill a log."""
        if self._is_quiet or not _is_live():
            return
        with self._lock:
            if self._rows:
                self._rows[-1].text = text
            else:
                self._rows.append(_Row(text))
        self._tick()

    def end(self) -> None:
        """Clear the rows."""
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            self._ended.set()
            ticker.join()
            self._ended.clear()
        with self._lock:
            self._erase()
            self._rows = []

    def notice(self, text: str) -> None:
        """Print one line."""
        self._say(f"ddpdoctor: {text}")

    def warning(self, text: str) -> None:
        """Print one line."""
        self._say(f"warning: {text}")

    def error(self, text: str) -> None:
        """Print one line."""
        self._say(f"error: {text}")

    def _say(self, line: str) -> None:
        from ddpdoctor.render.plain import printable  # only if something is said

        line = printable(line)
        with self._lock:
            self._erase()
            print(line, file=sys.stderr, flush=True)
            self._draw()

    def _finish_row(self) -> None:
        if self._rows:
            last = self._rows[-1]
            last.seconds = time.monotonic() - last.started

    def _tick(self) -> None:
        """Redraw while a phase runs, so that its elapsed time is current."""
        if self._ticker is None:
            try:
                self._ticker = start_thread(self._animate)
            except NoThreadError:
                return  # the rows stay as they were drawn last

    def _animate(self) -> None:
        while not self._ended.wait(FRAME_SECONDS):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        shown = self._rows[-MOST_ROWS:]
        if shown and time.monotonic() - self._rows[0].started > PATIENCE_SECONDS:
            self._erase("\n".join(map(_line, shown)), len(shown))

    def _erase(self, text: str = "", rows: int = 0) -> None:
        """Replace the rows on the screen by `text`, in one write, so that it does not flicker."""
        if self._drawn or text:
            # The last row has no line end, so that the output of another process is not mistaken for a row.
            _write(CLEAR + UP_AND_CLEAR * (self._drawn - 1) + text)
        self._drawn = rows


def _is_live() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _line(row: _Row) -> str:
    """One row, cut to the width of the terminal: a wrapped row could not be cleared."""
    is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
    frames = FRAMES if is_unicode else ASCII_FRAMES
    seconds = time.monotonic() - row.started if row.seconds is None else row.seconds
    spinner = frames[int(seconds / FRAME_SECONDS) % len(frames)]
    mark = spinner if row.seconds is None else ("✓" if is_unicode else "+")
    took = f"{seconds:.0f} s"
    most = max(NARROWEST, _columns()) - len(took) - 4
    text = row.text if row.text.isprintable() else ascii(row.text)[1:-1]
    text = text if len(text) <= most else text[: most - 1] + ("…" if is_unicode else ">")
    return f"{mark} {text} {took}"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    # Not sys.stderr.write(): a process that is forked while another thread writes would inherit a locked buffer.
    try:
        os.write(2, text.encode(sys.stderr.encoding or "utf-8", "replace"))
    except OSError:
        pass  # standard error is closed: progress is lost, the work continues
