"""Standard input, read with a deadline; as a file if it is a dump, facts, a report or stacks."""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO

from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.collectors.log.inputs import STDIN, patient
from ddpdoctor.facts.log import InputKind
from ddpdoctor.system.lifetime import temporary_folder

__all__ = ["on_disk", "standard_bytes", "standard_input"]

MOST_BYTES = 1 << 30
"""Of standard input that is a dump, facts or a report: the largest of them, a dump, is read up to 256 MiB."""
PIECE_BYTES = 1 << 20
STREAMS = (InputKind.TEXT, InputKind.KERNEL, InputKind.BINARY, InputKind.EMPTY)


def standard_input(deadline: float) -> IO[bytes] | None:
    """Standard input, which ends at the deadline; a terminal has no deadline."""
    if sys.stdin is None:
        return None
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # replaced by something that is not a file
        return getattr(sys.stdin, "buffer", None)
    return patient(os.dup(descriptor), math.inf if os.isatty(descriptor) else deadline, math.inf)


def standard_bytes(most: int, seconds: float) -> bytes:
    """At most so many bytes of standard input, which has `seconds` to end; b"" without standard input.

    Raises:
        TimeoutError: it neither ended nor held more than that in time.
    """
    stream = standard_input(time.monotonic() + seconds)
    if stream is None:
        return b""
    try:
        return stream.read(most)
    except TimeoutError:
        raise TimeoutError(f"standard input did not end within {seconds:.0f} s") from None
    finally:
        if isinstance(stream, io.BufferedReader) and stream is not getattr(sys.stdin, "buffer", None):
            stream.close()


@contextlib.contextmanager
def on_disk(paths: Iterable[str], stream: IO[bytes] | None) -> Iterator[list[str]]:
    """The paths; `-` becomes a file, which is removed at the end, unless its first bytes are those of a log."""
    given = list(paths)
    if STDIN not in given or not isinstance(stream, io.BufferedReader) or not _is_file(_head(stream)):
        yield given
        return
    with temporary_folder() as folder:
        name = os.path.join(folder, "standard_input")
        with open(name, "wb") as file:
            _copy(stream, file)
        yield [name if path == STDIN else path for path in given]


def _copy(stream: io.BufferedReader, file: IO[bytes]) -> None:
    """Copy at most MOST_BYTES, until the deadline. The reader of the file reports that its end is missing."""
    left = MOST_BYTES
    try:
        while left > 0 and (piece := stream.read1(min(PIECE_BYTES, left))):
            left -= file.write(piece)
    except TimeoutError:
        return


def _head(stream: io.BufferedReader) -> bytes:
    """The first bytes; empty if none arrive, which the reader of the stream reports."""
    try:
        return stream.peek(4096)
    except TimeoutError:
        return b""


def _is_file(head: bytes) -> bool:
    """A JSON value may be a log of JSON lines: as a file it is read like one."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") or kind_of(head, STDIN) not in STREAMS
