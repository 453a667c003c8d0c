"""The inputs of triage: files, folders and standard input, opened through gzip, bzip2, xz or zstd where they are packed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

__all__ = ["UNREADABLE", "Input", "inputs_of", "opened"]

STDIN = "-"
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading a damaged or forbidden input raises."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `name` is how it was given, `path` None for standard input; `packing` is how it is compressed, "" if not.

    `problem` says why it cannot be read at all.
    """

    name: str
    path: str | None
    size_bytes: int = 0
    packing: str = ""
    problem: str | None = field(default=None)


def inputs_of(paths: Iterable[str]) -> list[Input]:
    """The inputs that these paths name: a folder's are all files below it, by name."""
    found: dict[str, Input] = {}
    for path in paths:
        for each in _below(path):
            found.setdefault(each, _input(each))
    return list(found.values())


def opened(source: Input, stdin: IO[bytes] | None = None) -> IO[bytes]:
    """The bytes of an input, unpacked.

    Raises:
        OSError: it cannot be opened, or nothing here can unpack it.
    """
    if source.path is None:
        return _unpacked(_Peeking(stdin) if stdin is not None else io.BytesIO())
    file = open(source.path, "rb")  # noqa: SIM115 (the caller closes it)
    return _open_packed(file, source.packing)


def _below(path: str) -> Iterator[str]:
    if path == STDIN or not os.path.isdir(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(files))


def _input(path: str) -> Input:
    if path == STDIN:
        return Input("standard input", None)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
                return Input(path, path)
            return Input(path, path, problem="is no file")
        with open(path, "rb") as file:
            return Input(path, path, status.st_size, _packing(file.read(8)))
    except OSError as error:
        return Input(path, path, problem=error.strerror or str(error))


def _packing(head: bytes) -> str:
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


def _open_packed(file: IO[bytes], packing: str) -> IO[bytes]:
    packed: Any = file
    if packing == "gzip":
        return gzip.GzipFile(fileobj=packed)  # type: ignore[return-value]
    if packing == "bzip2":
        return bz2.BZ2File(packed)
    if packing == "xz":
        return lzma.LZMAFile(packed)
    return _zstd(packed) if packing == "zstd" else file


def _zstd(packed: Any) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise OSError("packed with zstd, which needs `pip install zstandard`") from None
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return reader


class _Peeking(io.RawIOBase):
    """Standard input, whose first bytes are looked at before they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.head = stream.read(8)
        self._left = self.head

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._left[: len(target)] or self._stream.read(len(target))
        self._left = self._left[len(target) :]
        target[: len(data)] = data
        return len(data)


def _unpacked(stream: Any) -> IO[bytes]:
    if not isinstance(stream, _Peeking):
        return stream  # type: ignore[no-any-return]
    return _open_packed(io.BufferedReader(stream), _packing(stream.head))
