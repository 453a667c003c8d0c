"""When this command was started."""

from __future__ import annotations

import time

__all__ = ["start_of_command"]

_starts = [time.monotonic()]
"""The start of the process, until its first command takes it."""


def start_of_command() -> float:
    """From when `--timeout` counts (time.monotonic): the start of the process, for a further command in it the present."""
    return _starts.pop() if _starts else time.monotonic()
