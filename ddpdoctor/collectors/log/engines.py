"""Finding the few lines that may matter: with google-re2 where it is installed, else with what Python has.

Both find every line that holds one of the literals, and perhaps more; the expressions themselves decide afterwards.
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
"""What most literals hold, and lines of data such as base64 or JSON without text do not."""
MOST_SEEN = 100_000
"""So many lines that matter to nobody are remembered, without their digits."""


class Engine(Protocol):
    """Finds lines, which a carriage return ends as well."""

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """A place in each line of `data[start:end]` that may matter, in order; in a long line one every LONGEST bytes."""


def engine(literals: Iterable[bytes]) -> Engine:
    """The fastest engine that is here. DDPDOCTOR_ENGINE=python takes Python's own."""
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
        self._search = re2.compile(b"|".join(re2.escape(each) for each in sorted(literals)), options).search

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """The first literal in each line that holds one."""
        at = start
        while (found := self._search(data, at, end)) is not None:
            yield found.start()
            at = line_end(data, found.end())


class _PythonEngine:
    """Logs repeat themselves: without its digits, a line has mostly been seen before, and each is looked at once."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._whole = sorted(literals)
        literals = sorted({each.translate(None, DIGITS) for each in self._whole})
        self._sentences = [each for each in literals if _WORDS.search(each)]
        self._words = [each for each in literals if not _WORDS.search(each)]
        self._seen: set[bytes] = set()
        self._hot: set[bytes] = set()

    def candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        """The beginning of each line whose kind holds a literal."""
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
        """The lines of the text that hold one of the literals."""
        found = set()
        for literal in literals:
            at = text.find(literal)
            while at >= 0:
                begin = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                found.add(text[begin : end if end >= 0 else len(text)])
                at = text.find(literal, end) if end >= 0 else -1
        return found
