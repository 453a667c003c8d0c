"""Files that a command writes: checked before the work is done, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ddpdoctor.app.request import UsageError

__all__ = ["CannotWriteError", "check_target", "write_file"]


class CannotWriteError(Exception):
    """A file could be opened but not written, for example on a full disk."""


def check_target(option: str, path: Path) -> None:
    """Refuse a file that cannot be written before the work is done.

    Raises:
        UsageError: it is a folder, or its folder is missing or not writable.
    """
    folder = path.resolve().parent
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder; expected a file")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {path}: permission denied")


def write_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file whole or not at all; a device or a pipe is written to as it is.

    A link is followed if this user or root made it, or if nobody else may write to its folder.

    Raises:
        CannotWriteError: it cannot be written.
    """
    if _is_planted(path):
        raise CannotWriteError(f"{path} was not written: another user made this link")
    target = path.resolve()  # the link's target, so that the link stays a link
    temporary = target.with_name(f".{target.name[:180]}.{os.getpid()}.{secrets.token_hex(4)}")
    in_place = target.exists() and not target.is_file()
    try:
        if in_place:
            target.write_text(text, "utf-8", "replace")
            return
        # O_EXCL: nobody can have put a link or a file of their own under this name.
        created = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(created, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        temporary.replace(target)
    except OSError as error:
        raise CannotWriteError(f"{path} was not written: {error.strerror}") from None
    finally:
        if not in_place:
            temporary.unlink(missing_ok=True)


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
