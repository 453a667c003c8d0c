"""Archives that users send (`.tar.gz`, `.zip`): unpacked into a folder, with bounds on their size and their names."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from typing import IO

from ddpdoctor.light_dataclass import dataclass

__all__ = ["ENDINGS", "MOST_BYTES", "MOST_MEMBERS", "Unpacked", "is_archive", "unpack"]

ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
MOST_MEMBERS = 2000
MOST_BYTES = 1 << 30
"""Of all members together, unpacked: an archive of a few kilobytes can hold more than any disk."""
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Unpacked:
    """How many files were unpacked, and why others were not; "" if all were."""

    files: int
    problem: str = ""


def is_archive(path: str) -> bool:
    """Whether a path names a file that this module unpacks, by its ending."""
    return path.lower().endswith(ENDINGS) and os.path.isfile(path)


def unpack(path: str, folder: str, most_members: int = MOST_MEMBERS, most_bytes: int = MOST_BYTES) -> Unpacked:
    """Write the regular files of an archive below `folder`. Links, devices, and names that lead out of it are left out."""
    files, left, skipped = 0, most_bytes, 0
    try:
        for name, source in _members(path):
            target = _inside(folder, name)
            if target is None:
                skipped += 1
                continue
            if files >= most_members:
                return Unpacked(files, f"only its first {most_members} files were read")
            written = _write(source, target, left)
            left -= written
            files += 1
            if left <= 0:
                return Unpacked(files, f"only its first {most_bytes >> 20} MiB were read")
    except _broken() as error:
        return Unpacked(files, f"cannot be unpacked: {str(error) or type(error).__name__}")
    unsafe = f"{skipped} file{'s' if skipped != 1 else ''} with a path outside of the archive" if skipped else ""
    return Unpacked(files, unsafe)


def _broken() -> tuple[type[Exception], ...]:
    """What the modules for archives raise for a file that they cannot read."""
    import tarfile
    import zipfile

    return OSError, EOFError, ValueError, RuntimeError, zlib.error, LZMAError, tarfile.TarError, zipfile.BadZipFile


def _members(path: str) -> Iterator[tuple[str, IO[bytes]]]:
    """The names of the regular files, each with its bytes, in the archive's order."""
    import tarfile
    import zipfile

    if path.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    with packed.open(info) as source:
                        yield info.filename, source
        return
    with tarfile.open(path, "r:*") as packed_tar:
        for member in packed_tar:
            tar_source = packed_tar.extractfile(member) if member.isreg() else None
            if tar_source is not None:
                yield member.name, tar_source


def _inside(folder: str, name: str) -> str | None:
    """The path of a member below the folder; None for a name that leads out of it."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or any(len(part) > 200 for part in parts):
        return None
    return os.path.join(folder, *parts)


def _write(source: IO[bytes], target: str, most_bytes: int) -> int:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    written = 0
    with open(target, "wb") as file:
        while written < most_bytes and (piece := source.read(min(PIECE_BYTES, most_bytes - written))):
            written += file.write(piece)
    return written
