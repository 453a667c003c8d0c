"""The inputs of triage: files, folders and standard input, decompressed from gzip, bzip2, xz or zstd."""

from __future__ import annotations

import bz2
import codecs
import errno
import io
import lzma
import math
import os
import select
import stat
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import IO, Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.regular_file import special_file, special_kind
from ddpdoctor.system.timeouts import call_each_with_timeout

__all__ = [
    "STDIN",
    "STDIN_NAME",
    "UNREADABLE",
    "Input",
    "TolerantReader",
    "inputs_of",
    "opened",
    "patient",
    "reason_of",
]

STDIN = "-"
STDIN_NAME = "standard input"
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES = 64 << 10
"""How much of an input is read to recognize its kind."""
PIECE_BYTES = 1 << 20
MOST_BYTES = 1 << 40
PATIENT_BYTES = 64 << 10
ANSWER_SECONDS = 10.0
"""Reading an input is given up after this long without data."""
FOLDER_SECONDS = 60.0
MOST_DEPTH = 100
TOO_DEEP = f"a folder nested more than {MOST_DEPTH} deep"
NO_ANSWER = f"no answer within {ANSWER_SECONDS:g} s"
LATE = "not read to its end within --timeout"
UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""The errors of reading a corrupt or unreadable input."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `name` is how it was given, `path` None for standard input; `packing` is how it is compressed, "" if not.

    `is_named`: the user named it, not a folder that contains it. `problem` is why it cannot be read at all. `special` names an
    input that is not a regular file; `may_block`: it is read with a time limit. `target` is the target of a symbolic link.
    """

    name: str
    path: str | None
    size_bytes: int = 0
    packing: str = ""
    is_named: bool = True
    problem: str | None = None
    special: str | None = None
    may_block: bool = False
    target: str | None = None


class TolerantReader:
    """Reads as much as possible: a read error counts as the end of the input, and `problem` is the reason.

    UTF-16 text (as PowerShell writes it) is converted to UTF-8.
    """

    def __init__(self, file: IO[bytes], deadline: float = math.inf) -> None:
        self._file = file
        self._deadline = deadline
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
            if self._deadline < time.monotonic():
                self.problem = LATE
                break
            try:
                piece = self._read(min(size, PIECE_BYTES))
            except UNREADABLE as error:
                self.problem = reason_of(error)
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def inputs_of(paths: Iterable[str]) -> list[Input]:
    """The inputs that these paths name: for a folder, all files below it, by name. An input that times out has a problem."""
    given = list(dict.fromkeys(paths))
    folders, late = call_each_with_timeout(_below, given, FOLDER_SECONDS)
    named = [name for path in given for name in folders.get(path, [path])]
    known, later = call_each_with_timeout(_input, list(dict.fromkeys(named)), ANSWER_SECONDS)
    slow = {path: Input(path, path, problem=NO_ANSWER) for path in (*late, *later)}
    found: dict[str, Input] = {}
    for path in given:
        below = folders.get(path, [path])
        if not below:
            found[path] = Input(path, path, problem="a folder without files")
        for each in below:
            known_input = slow.get(each) or known[each]
            found.setdefault(each, known_input if each == path else _in_folder(known_input))
    files = {os.path.abspath(name) for name in found}
    return [each for each in found.values() if each.is_named or each.target is None or each.target not in files]


def opened(source: Input, stdin: IO[bytes] | None = None, deadline: float = math.inf) -> IO[bytes]:
    """The bytes of an input, unpacked.

    Args:
        source: the input.
        stdin: standard input.
        deadline: a pipe or a device is waited for until then at most, by `time.monotonic`.

    Raises:
        OSError: it cannot be opened, or nothing here can unpack it.
    """
    if source.path is None:
        return _unpacked(_Peeking(stdin) if stdin is not None else io.BytesIO())
    if source.may_block:
        waiting = patient(os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), deadline, ANSWER_SECONDS)
        return _open_packed(waiting, _packing(waiting.peek(8)[:8]))
    if source.packing == "gzip":
        import gzip

        return gzip.GzipFile(source.path)  # type: ignore[return-value]
    if source.packing == "bzip2":
        return bz2.open(source.path, "rb")
    if source.packing == "xz":
        return lzma.open(source.path, "rb")
    plain = open(source.path, "rb")  # noqa: SIM115 (the caller closes it)
    return _zstd(plain) if source.packing == "zstd" else plain


def patient(descriptor: int, deadline: float, seconds: float) -> io.BufferedReader:
    """A reader of a pipe or a device that waits at most `seconds` for each piece of data, and until `deadline` in total."""
    return io.BufferedReader(_PatientFile(descriptor, deadline, seconds), PATIENT_BYTES)


class _PatientFile(io.RawIOBase):
    """Reads with a time limit for each piece of data."""

    def __init__(self, descriptor: int, deadline: float, seconds: float) -> None:
        self._descriptor, self._deadline, self._seconds = descriptor, deadline, seconds
        self._is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor)
        self._has_answered = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """The next bytes; 0 at the end, or if a device has no more data.

        Raises:
            TimeoutError: no answer in time.
        """
        while True:
            left = min(self._seconds, self._deadline - time.monotonic())
            waiting = select.poll()
            waiting.register(self._descriptor, select.POLLIN)
            if left <= 0 or not waiting.poll(None if left == math.inf else left * 1000):
                raise TimeoutError(NO_ANSWER if self._seconds <= left else LATE)
            try:
                data = os.read(self._descriptor, len(target))
            except BlockingIOError:
                if self._is_device and self._has_answered:
                    return 0
                continue
            except BrokenPipeError:
                continue  # the kernel has overwritten unread messages
            self._has_answered = True
            target[: len(data)] = data
            return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _below(path: str) -> list[str]:
    """A file itself; or all files in a folder, including unreadable folders and links to paths outside of it."""
    if path == STDIN or not os.path.isdir(path):
        return [path]
    found: list[str] = []
    refused: list[str] = []
    root = os.path.realpath(path)
    waiting = [(path, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda each: each.name)
        except OSError as error:
            refused.append(str(error.filename))
            continue
        folders = [entry.path for entry in entries if os.path.isdir(entry.path)]
        links = {each for each in folders if os.path.islink(each)}
        found += [link for link in folders if link in links and not _is_below(os.path.realpath(link), root)]
        known = set(folders)
        found += [entry.path for entry in entries if entry.path not in known]
        inside = [each for each in folders if each not in links]
        if depth < MOST_DEPTH:
            waiting += [(each, depth + 1) for each in reversed(inside)]
        else:
            refused += inside
    return found + refused


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _input(path: str) -> Input:
    if path == STDIN:
        return Input(STDIN_NAME, None)
    try:
        status = os.stat(path)
        mode = status.st_mode
        if stat.S_ISREG(mode) and status.st_size:
            with open(path, "rb") as file:
                target = os.path.realpath(path) if os.path.islink(path) else None
                return Input(path, path, status.st_size, _packing(file.read(8)), target=target)
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
            what = "a link to a folder" if os.path.islink(path) else TOO_DEEP
            return Input(path, path, special=what, problem=what)
        special = special_kind(mode)
        if special is None and os.path.realpath(path).startswith(_KERNELS):
            special = "a file of the kernel"
        cannot_be_read = stat.S_ISSOCK(mode) or stat.S_ISBLK(mode)
        return Input(path, path, special=special, may_block=True, problem=special if cannot_be_read else None)
    except OSError as error:
        return Input(path, path, problem=reason_of(error))


_KERNELS = ("/proc/", "/sys/")


def _in_folder(found: Input) -> Input:
    """An input that the user did not name itself: only regular files are read."""
    return replace(found, is_named=False, problem=found.problem or found.special)


def reason_of(error: Exception) -> str:
    """Why an input cannot be read, as a short phrase."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.errno == errno.ELOOP and error.filename:
        return special_file(os.fsdecode(error.filename)) or str(error.strerror)
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{words[0].lower()}{words[1:]}" if words[1:2].islower() else str(words)


def _packing(head: bytes) -> str:
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


def _open_packed(file: IO[bytes], packing: str) -> IO[bytes]:
    packed: Any = file
    if packing == "gzip":
        import gzip

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
    reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True, closefd=True)
    return _Zstd(reader, zstandard.ZstdError)  # type: ignore[return-value]


class _Zstd(io.RawIOBase):
    """A zstd stream whose errors are those of files: a broken frame, or one that needs too much memory."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self._reader = reader
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        try:
            data = self._reader.read(len(target))
        except self._error as error:
            raise OSError(f"not readable as zstd: {error!s:.100}") from None
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._reader.close()
        super().close()


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
