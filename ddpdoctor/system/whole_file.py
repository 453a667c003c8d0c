"""Writes files whole or not at all, and never through a link that another user made."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

__all__ = ["ANSWER_SECONDS", "write_whole"]

ANSWER_SECONDS = 10.0
"""How long the reader of a pipe is waited for."""


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Create a new file exclusively and put it in the place of an old one; a device or a pipe is written to as it is.

    A link is followed if this user or root made it, or if nobody else may write to its folder.

    Raises:
        OSError: it cannot be written, with the reason as `strerror`.
    """
    target = path.resolve()  # the link's target, so that the link stays a link
    if _is_planted(path):
        raise OSError(errno.EPERM, "another user made this link")
    data = text.encode("utf-8", "replace")
    try:
        is_special = not stat.S_ISREG(os.stat(target).st_mode)
    except FileNotFoundError:
        is_special = False
    if is_special:
        _write_in_place(target, data)
    else:
        _replace(target, data, mode)


def _replace(target: Path, data: bytes, mode: int) -> None:
    temporary = target.with_name(f".{target.name[:180]}.{os.getpid()}.{os.urandom(4).hex()}")
    # O_EXCL: nobody can have put a link or a file of their own under this name.
    created = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(created, "wb") as file:
            file.write(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_in_place(target: Path, data: bytes) -> None:
    """Write to a device or a pipe, whose reader may be missing or slow."""
    try:
        opened = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(target).st_mode):
            raise OSError(errno.ENXIO, "no program reads this pipe") from None
        raise
    try:
        _write_all(opened, data)
    finally:
        os.close(opened)


def _write_all(opened: int, data: bytes) -> None:
    waiting = select.poll()
    waiting.register(opened, select.POLLOUT)
    until = time.monotonic() + ANSWER_SECONDS
    while data:
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise OSError(errno.ETIMEDOUT, f"its reader took nothing for {ANSWER_SECONDS:g} s")
        try:
            data = data[os.write(opened, data) :]
        except BlockingIOError:
            continue
        until = time.monotonic() + ANSWER_SECONDS


def _is_planted(path: Path) -> bool:
    """Whether one of the links on the way to the file was made by another user in a folder that others may write to."""
    place = Path(os.path.abspath(path))
    for each in (place, *place.parents):
        try:
            status = os.lstat(each)
            folder = os.stat(each.parent)
        except OSError:
            continue
        is_foreign = stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0)
        if is_foreign and folder.st_mode & 0o022:
            return True
    return False
