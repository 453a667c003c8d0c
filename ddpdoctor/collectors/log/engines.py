"""Finds the few lines that may be relevant: with google-re2 if it is installed, else in pure Python.

Both find every line that contains one of the literals, and perhaps more; the patterns themselves decide afterwards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ddpdoctor.logs.tracebacks.line_context import MOST_LINE_BYTES, line_end

__all__ = ["DIGITS", "Engine", "engine"]

DIGITS = b"0123456789"
_WORDS = re.compile(rb"[A-Za-z)\]] [A-Za-z(\[]")
"""Two words: most literals contain them, but lines of data (base64, JSON without text) do not."""
MOST_SEEN = 100_000
"""How many lines without a literal are remembered, with their digits removed."""


class Engine(Protocol):
    """Finds lines, which may also end in a carriage return."""

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """A position in each relevant line of `data[start:end]`, in order; in a long line, one every MOST_LINE_BYTES."""


def engine(literals: Iterable[bytes]) -> Engine:
    """The fastest installed engine. `DDPDOCTOR_ENGINE=python` selects the pure Python one."""
    if os.environ.get("DDPDOCTOR_ENGINE") != "python":
        try:
            import re2
        except ImportError:
            pass
        else:
            return _Re2Engine(re2, literals)
    return _PythonEngine(literals)


class _Re2Engine:
    """One automaton for all literals."""

    def __init__(self, re2: Any, literals: Iterable[bytes]) -> None:
        options = re2.Options()
        options.max_mem = 64 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        options.never_capture = True
        self._search = re2.compile(b"|".join(re2.escape(literal) for literal in sorted(literals)), options).search

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """The position of the first literal in each line that contains one."""
        at = start
        while (found := self._search(data, at, end)) is not None:
            yield found.start()
            at = line_end(data, found.end())


class _PythonEngine:
    """Logs are repetitive: with digits removed, most lines are duplicates, and each distinct line is searched once."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._whole = sorted(literals)
        literals = sorted({each.translate(None, DIGITS) for each in self._whole})
        self._sentences = [literal for literal in literals if _WORDS.search(literal)]
        self._words = [literal for literal in literals if not _WORDS.search(literal)]
        self._seen: set[bytes] = set()
        self._hot: set[bytes] = set()

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """The start of each line that, without its digits, contains a literal."""
        body = data[start:end].replace(b"\r", b"\n")
        lines = body.translate(None, DIGITS).split(b"\n")
        fresh = set(lines) - self._seen
        if fresh:
            self._hot |= self._holding(fresh)
            if len(self._seen) > MOST_SEEN:
                self._seen.clear()
            self._seen |= fresh
        if self._hot.isdisjoint(lines):
            return
        at = start
        for kind, line in zip(lines, body.split(b"\n"), strict=True):
            if kind in self._hot:
                yield from (at,) if len(line) < MOST_LINE_BYTES else (at + place for place in self._places(line))
            at += len(line) + 1

    def _places(self, line: bytes) -> Iterator[int]:
        after = 0
        for place in sorted(each.start() for word in self._whole for each in re.finditer(re.escape(word), line)):
            if place >= after:
                yield place
                after = place + MOST_LINE_BYTES

    def _holding(self, lines: set[bytes]) -> set[bytes]:
        sentences = [line for line in lines if _WORDS.search(line)]
        return self._with(self._words, b"\n".join(lines)) | self._with(self._sentences, b"\n".join(sentences))

    @staticmethod
    def _with(literals: list[bytes], text: bytes) -> set[bytes]:
        """The lines of the text that contain one of the literals."""
        found = set()
        for literal in literals:
            at = text.find(literal)
            while at >= 0:
                begin = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                found.add(text[begin : end if end >= 0 else len(text)])
                at = text.find(literal, end) if end >= 0 else -1
        return found
