"""Ends every process of a rehearsal, also those that left its session, and removes its folder when the supervisor was killed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

__all__ = ["end_marked", "wait_for_end"]

SECONDS = 3.0


def end_marked(marker: str) -> list[int]:
    """Kill all processes whose environment has this marker, until none is left or SECONDS have passed. Returns those left."""
    deadline = time.monotonic() + SECONDS
    needle = marker.encode()
    while True:
        left = [pid for pid in _pids() if needle in _environ(pid)]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # it has ended, or is not ours
        time.sleep(0.01)


def wait_for_end(lifeline: str, marker: str, folder: str) -> None:
    """Wait until the supervisor has closed its end of a FIFO, by intent or because it was killed; then clean up."""
    with open(lifeline, "rb") as file:
        file.read()
    end_marked(marker)
    shutil.rmtree(folder, ignore_errors=True)


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != own]


def _environ(pid: int) -> bytes:
    try:
        folder = Path(f"/proc/{pid}")
        return (folder / "environ").read_bytes() if folder.stat().st_uid == os.getuid() or os.getuid() == 0 else b""
    except OSError:
        return b""
