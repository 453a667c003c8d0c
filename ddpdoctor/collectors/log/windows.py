"""A file in windows: what is new, with enough around it to read tracebacks that begin or end beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["AHEAD_BYTES", "BEHIND_BYTES", "CHUNK_BYTES", "Readable", "windows"]

CHUNK_BYTES = 1 << 20
"""Small enough to stay in a core's cache, and for memory that is used again and not mapped anew for each window."""
AHEAD_BYTES = 128 << 10
"""A traceback is read for so many bytes after the window that it begins in."""
BEHIND_BYTES = 32 << 10


class Readable(Protocol):
    """Bytes from their beginning, unpacked."""

    def read(self, size: int = -1, /) -> bytes: ...


def windows(file: Readable, behind: int = 0, most: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """(data, start, end): `data[start:end]` is new; the bytes around it were read before or are read again.

    Args:
        behind: so many bytes at the beginning are not new.
        most: so many are, all to the end without it.
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
    """Where the last line ends that has AHEAD_BYTES after it."""
    last = len(data) - AHEAD_BYTES
    if last <= start:
        return start
    end = max(data.rfind(b"\n", start, last), data.rfind(b"\r", start, last)) + 1
    return end if end > 0 else last
