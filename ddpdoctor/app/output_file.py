"""Files that a command writes: checked before the work is done, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ddpdoctor.app.request import UsageError
from ddpdoctor.system.whole_file import write_whole

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
    """Write a file whole or not at all, as `write_whole` does.

    Raises:
        CannotWriteError: it cannot be written.
    """
    try:
        write_whole(path, text, mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before Python 3.13
        raise CannotWriteError(f"{path} was not written: {getattr(error, 'strerror', None) or error}") from None
