"""The inputs of triage: files, folders and standard input, decompressed from gzip, bzip2, xz or zstd."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

__all__ = ["UNREADABLE", "Input", "TolerantReader", "inputs_of", "opened"]

STDIN = "-"
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES = 64 << 10
"""How much of an input is read to recognize its kind."""
PIECE_BYTES = 1 << 20
MOST_BYTES = 1 << 40
UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""The errors of reading a corrupt or unreadable input."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `name` is how it was given, `path` None for standard input; `packing` is how it is compressed, "" if not.

    `is_named`: the user named it, not a folder that contains it. `problem` is why it cannot be read at all.
    """

    name: str
    path: str | None
    size_bytes: int = 0
    packing: str = ""
    is_named: bool = True
    problem: str | None = None


class TolerantReader:
    """Reads as much as possible: a read error counts as the end of the input, and `problem` is the reason.

    UTF-16 text (as PowerShell writes it) is converted to UTF-8.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._read = getattr(file, "read1", file.read)
        self._decode: Callable[[bytes, bool], str] | None = None
        self.problem: str | None = None
        self.head = self._more(HEAD_BYTES)
        if self.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._decode = codecs.getincrementaldecoder("utf-16")("replace").decode
            self.head = self._decode(self.head, False).encode("utf-8", "replace")
        self._left = self.head

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, everything by default; b"" only at the end."""
        wanted = size if size >= 0 else MOST_BYTES
        data, self._left = self._left[:wanted], self._left[wanted:]
        if len(data) < wanted and not self._left:
            more = self._more(wanted - len(data))
            data += more if self._decode is None else self._decode(more, not more).encode("utf-8", "replace")
        return data

    def seek(self, place: int) -> None:
        """Continue at another position of a file that is not compressed."""
        self._file.seek(place)
        self._left = b""

    @property
    def is_recoded(self) -> bool:
        """Whether the text was converted, so that positions in it are not positions in the file."""
        return self._decode is not None

    def _more(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and self.problem is None:
            try:
                piece = self._read(min(size, PIECE_BYTES))
            except UNREADABLE as error:
                self.problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def inputs_of(paths: Iterable[str]) -> list[Input]:
    """The inputs that these paths name: for a folder, all files below it, by name."""
    found: dict[str, Input] = {}
    for path in paths:
        below = list(_below(path))
        if not below:
            found[path] = Input(path, path, problem="folder without files")
        for each in below:
            found.setdefault(each, replace(_input(each), is_named=each == path))
    return list(found.values())


def opened(source: Input, stdin: IO[bytes] | None = None) -> IO[bytes]:
    """The bytes of an input, decompressed.

    Raises:
        OSError: it cannot be opened, or its compression is not supported.
    """
    if source.path is None:
        return _unpacked(_Peeking(stdin) if stdin is not None else io.BytesIO())
    if source.packing == "gzip":
        return gzip.GzipFile(source.path)  # type: ignore[return-value]
    if source.packing == "bzip2":
        return bz2.open(source.path, "rb")
    if source.packing == "xz":
        return lzma.open(source.path, "rb")
    plain = open(source.path, "rb")  # noqa: SIM115 (the caller closes it)
    return _zstd(plain) if source.packing == "zstd" else plain


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
            return Input(path, path, problem="not a regular file")
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
        raise OSError("compressed with zstd; run `pip install zstandard` to read it") from None
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True, closefd=True)
    return reader


class _Peeking(io.RawIOBase):
    """Standard input, whose first bytes are examined before they are read."""

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
