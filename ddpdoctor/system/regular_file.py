"""Reads files that others name: only regular ones, and without waiting for a pipe, a device or the kernel's log."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["read_regular", "special_file", "special_kind", "text_of_regular", "why_unreadable"]

PIECE_BYTES = 1 << 20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a device"),
)


def special_kind(mode: int) -> str | None:
    """What a file of this mode is, such as "a named pipe"; None for a regular file."""
    return next((word for is_it, word in _KINDS if is_it(mode)), None)


def special_file(path: str) -> str | None:
    """What `path` is, such as "a named pipe"; None for a regular file, and if nothing is known about it."""
    try:
        return special_kind(os.stat(path).st_mode)
    except OSError as error:
        return "a symbolic link to itself" if error.errno == errno.ELOOP else None
    except ValueError:  # a zero byte in it
        return None


def why_unreadable(error: OSError, path: str) -> str:
    """Why a file could not be read: what it is if that is the reason, else the words of the error."""
    words = error.strerror or str(error)
    if error.errno == errno.EAGAIN:
        return "no data to read now"
    if error.errno not in (errno.ENXIO, errno.EISDIR, errno.ELOOP):
        return words
    return special_file(path) or words


def read_regular(path: str, most: int) -> bytes:
    """At most so many bytes of a file.

    Raises:
        OSError: it cannot be read, is not a regular file, or has nothing to read now (/proc/kmsg).
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        special = special_file(path)
        raise OSError(error.errno, f"{special}, not a regular file" if special else error.strerror, path) from None
    try:
        special = special_kind(os.fstat(opened).st_mode)
        if special is not None:
            raise OSError(0, f"{special}, not a regular file", path)
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
