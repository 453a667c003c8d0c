"""Reads files that others name: only regular ones, and without waiting for a pipe, a device or the kernel's log."""

from __future__ import annotations

import os
import stat

__all__ = ["read_regular", "text_of_regular"]

PIECE_BYTES = 1 << 20


def read_regular(path: str, most: int) -> bytes:
    """At most so many bytes of a file.

    Raises:
        OSError: it cannot be read, is not a regular file, or has nothing to read now (/proc/kmsg).
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(0, "not a regular file", path)
        pieces: list[bytes] = []
        while most > 0 and (piece := os.read(opened, min(most, PIECE_BYTES))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)
    except BlockingIOError:
        raise OSError(0, "no data to read now", path) from None
    finally:
        os.close(opened)


def text_of_regular(path: str, most: int) -> str:
    """The text of at most so many bytes of a file, with `\\n` at the ends of lines.

    Raises:
        OSError: as `read_regular`.
    """
    text = read_regular(path, most).decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
