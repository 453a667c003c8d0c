"""Reading text: the lines that matter among millions, with bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ddpdoctor.collectors.log.blocks import Block, exit_of, traceback_of
from ddpdoctor.facts.log import Exit, Line, Traceback, Who
from ddpdoctor.facts.log.kernel import KernelLog
from ddpdoctor.facts.log.literals import literals_of
from ddpdoctor.facts.log.prefix import cleaned, split
from ddpdoctor.facts.xids import Xid

__all__ = ["Part", "Readable", "Scanner"]

CHUNK_BYTES = 4 << 20
AHEAD_BYTES = 128 << 10
"""A traceback is read on for so far behind the chunk that it begins in."""
BEHIND_BYTES = 4 << 10
LONGEST_LINE = 2000
VARIANTS = 8
"""Of lines of one rank that differ in numbers alone, so many are kept."""
TAIL_LINES = 30
TAIL_BYTES = 32 << 10
MOST_LINES = 20_000
MOST_TRACEBACKS = 2_000

TRACEBACK = b"Traceback (most recent call last)"
EXIT = b"(local_rank: "
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class Readable(Protocol):
    """Bytes from their beginning, unpacked."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(slots=True)
class Part:
    """What one input, or a span of it, gave. Sources are numbered when parts are put together.

    `newlines` counts line ends; `problem` says why it was not read to its end.
    """

    lines: list[Line] = field(default_factory=list)
    tracebacks: list[Traceback] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    tail: list[Line] = field(default_factory=list)
    xids: tuple[Xid, ...] = ()
    newlines: int = 0
    size_bytes: int = 0
    problem: str | None = None


class Scanner:
    """Looks for lines that match one of many patterns. Made once, used for every input."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(literal, re.compile(p)) for p in dict.fromkeys(patterns) for literal in literals_of(p)]
        literals = sorted({literal.encode() for literal, _ in self._patterns} | {TRACEBACK, EXIT}, key=len)
        self._anchors = re.compile(b"|".join(re.escape(each) for each in literals))

    def scan(self, file: Readable) -> Part:
        """Everything that matters in a file, read to its end in chunks."""
        part = Part()
        keeper = _Keeper(part)
        last = b""
        for data, start, end in _chunks(file):
            last = data[max(start, end - BEHIND_BYTES) : end]
            for place in self._candidates(data, start, end):
                self._look(data, place, part.newlines + data.count(b"\n", start, place) + 1, keeper)
            part.newlines += data.count(b"\n", start, end)
            part.size_bytes += end - start
            part.tail = _last_lines(data, end, part.newlines)
        keeper.finish()
        part.xids = keeper.kernel.finish(last.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
        return part

    def _candidates(self, data: bytes, start: int, end: int) -> Iterator[int]:
        at = start
        while (found := self._anchors.search(data, at, end)) is not None:
            yield found.start()
            at = data.find(b"\n", found.end(), end)
            if at < 0:
                return

    def _look(self, data: bytes, place: int, number: int, keeper: _Keeper) -> None:
        block = Block(data, place)
        first = block.line
        text = cleaned(first)
        if TRACEBACK.decode() in text:
            found = traceback_of(block, number)
            if found is not None:
                keeper.take_traceback(found)
        elif EXIT.decode() in text:
            ended = exit_of(block, number)
            if ended is not None:
                keeper.take_exit(ended)
        keeper.kernel.take(text, number)
        if any(literal in text and known.search(text) for literal, known in self._patterns):
            keeper.take_line(text, number)


class _Keeper:
    """Keeps each line once a rank, whatever numbers stand in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.kernel = KernelLog()
        self._known: dict[tuple[Who, str], list[int]] = {}
        self._counts: dict[int, tuple[int, int]] = {}

    def take_line(self, text: str, number: int) -> None:
        prefixed = split(text)
        body = prefixed.text[:LONGEST_LINE].rstrip()
        key = (prefixed.who, _NUMBERS.sub("#", body)[:200])
        same = self._known.setdefault(key, [])
        if same and (len(same) >= VARIANTS or any(self._part.lines[i].text == body for i in same)):
            count, _ = self._counts.get(same[0], (1, 0))
            self._counts[same[0]] = (count + 1, number)
            return
        if len(self._part.lines) >= MOST_LINES:
            return
        same.append(len(self._part.lines))
        self._part.lines.append(Line(0, number, body, prefixed.who, prefixed.time))

    def take_traceback(self, found: Traceback) -> None:
        if len(self._part.tracebacks) < MOST_TRACEBACKS:
            self._part.tracebacks.append(found)

    def take_exit(self, found: Exit) -> None:
        self._part.exits.append(found)

    def finish(self) -> None:
        for index, (count, last) in self._counts.items():
            self._part.lines[index] = replace(self._part.lines[index], count=count, last=last)


def _last_lines(data: bytes, end: int, newlines: int) -> list[Line]:
    """The last lines before `end` that hold text, where `newlines` lines have ended."""
    found: list[Line] = []
    number = newlines if data[end - 1 : end] == b"\n" else newlines + 1
    raw = data[max(0, end - TAIL_BYTES) : end].removesuffix(b"\n").split(b"\n")
    for line in reversed(raw[1:] if end > TAIL_BYTES else raw):
        last = next((piece for piece in reversed(line.split(b"\r")) if piece.strip()), b"")
        prefixed = split(cleaned(last[:LONGEST_LINE].decode("utf-8", "replace")))
        if prefixed.text.strip():
            found.append(Line(0, number, prefixed.text.rstrip(), prefixed.who, prefixed.time))
        number -= 1
        if len(found) == TAIL_LINES:
            break
    return found[::-1]


def _chunks(file: Readable) -> Iterator[tuple[bytes, int, int]]:
    """(data, start, end): `data[start:end]` is new; what stands around it was read before or is read again."""
    data, start, is_end = b"", 0, False
    while not is_end:
        more = file.read(CHUNK_BYTES)
        is_end = len(more) < CHUNK_BYTES and not more
        data += more
        end = len(data) if is_end else _line_end(data, start)
        if end > start:
            yield data, start, end
        kept = max(0, end - BEHIND_BYTES)
        data, start = data[kept:], end - kept


def _line_end(data: bytes, start: int) -> int:
    """Where the last line ends that has AHEAD_BYTES behind it."""
    last = len(data) - AHEAD_BYTES
    if last <= start:
        return start
    end = data.rfind(b"\n", start, last) + 1
    return end if end > 0 else last
