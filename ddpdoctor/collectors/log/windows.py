"""Reads a file in overlapping windows, so that tracebacks across window boundaries are complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["AHEAD_BYTES", "BEHIND_BYTES", "CHUNK_BYTES", "Readable", "windows"]

CHUNK_BYTES = 1 << 20
"""Small enough for a core's cache, and for malloc to reuse the memory instead of mapping it again for each window."""
AHEAD_BYTES = 128 << 10
"""How many bytes after its window a traceback is read."""
BEHIND_BYTES = 32 << 10


class Readable(Protocol):
    """A stream of decompressed bytes."""

    def read(self, size: int = -1, /) -> bytes: ...


def windows(file: Readable, behind: int = 0, most: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """(data, start, end): `data[start:end]` is new; the bytes around it are context.

    Args:
        behind: how many bytes at the beginning are context only.
        most: how many bytes are new; by default all.
    """
    data = file.read(behind) if behind else b""
    start, is_end = len(data), False
    while not is_end:
        more = file.read(CHUNK_BYTES)
        is_end = not more
        data += more
        end = len(data) if is_end else _line_end(data, start)
        if most is not None and end - start >= most:
            end, is_end = start + most, True
        if end > start:
            yield data, start, end
        if most is not None:
            most -= end - start
        kept = max(0, end - BEHIND_BYTES)
        data, start = data[kept:], end - kept


def _line_end(data: bytes, start: int) -> int:
    """The end of the last line that has AHEAD_BYTES after it."""
    last = len(data) - AHEAD_BYTES
    if last <= start:
        return start
    end = max(data.rfind(b"\n", start, last), data.rfind(b"\r", start, last)) + 1
    return end if end > 0 else last
