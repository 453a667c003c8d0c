"""Files that a command writes: checked before the work is done, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ddpdoctor.app.request import UsageError
from ddpdoctor.system.regular_file import special_kind, why_unreadable
from ddpdoctor.system.whole_file import write_whole

__all__ = ["CannotWriteError", "check_target", "write_file"]


UNWRITABLE = ("a folder", "a socket")


class CannotWriteError(Exception):
    """A file could not be written, for example because the disk is full; `reason` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} was not written: {reason}")
        self.reason = reason


def check_target(option: str, path: Path) -> None:
    """Refuse a file that cannot be written before the work is done.

    Raises:
        UsageError: it is a folder, a socket or a link to itself, or its folder is missing or not writable.
    """
    folder = os.path.dirname(os.path.realpath(path))
    is_new = False
    try:
        special = special_kind(os.stat(path).st_mode)
    except FileNotFoundError:
        is_new, special = True, None
    except OSError as error:
        raise UsageError(f"{option} {path}: {why_unreadable(error, str(path)).lower()}") from None
    if special in UNWRITABLE:
        raise UsageError(f"{option} {path}: is {special}; expected a file")
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder if is_new else path, os.W_OK):
        raise UsageError(f"{option} {path}: permission denied")


def write_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file whole or not at all, as `write_whole` does.

    Raises:
        CannotWriteError: it cannot be written.
    """
    try:
        write_whole(path, text, mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before Python 3.13
        raise CannotWriteError(path, getattr(error, "strerror", None) or str(error)) from None
