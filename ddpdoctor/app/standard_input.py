"""Standard input as a file, where it is not a stream of lines: a dump, facts, a report, stacks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.collectors.log.inputs import STDIN
from ddpdoctor.facts.log import InputKind

__all__ = ["on_disk"]

STREAMS = (InputKind.TEXT, InputKind.KERNEL, InputKind.BINARY, InputKind.EMPTY)


@contextlib.contextmanager
def on_disk(paths: Iterable[str]) -> Iterator[list[str]]:
    """The paths; `-` becomes a file, which is removed in the end, unless its first bytes are those of a log."""
    given = list(paths)
    stream: Any = sys.stdin.buffer if sys.stdin else None
    if STDIN not in given or stream is None or not _is_file(stream.peek(4096)):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="ddpdoctor_") as folder:
        name = os.path.join(folder, "standard_input")
        with open(name, "wb") as file:
            shutil.copyfileobj(stream, file)
        yield [name if path == STDIN else path for path in given]


def _is_file(head: bytes) -> bool:
    """A JSON value may turn out to be a log of JSON lines: as a file it is read like one."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") or kind_of(head, STDIN) not in STREAMS
