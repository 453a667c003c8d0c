"""Reading text: the lines that matter among millions, with bounded memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddpdoctor.collectors.log.blocks import Block, exit_of, pieces, syntax_error_of, traceback_of
from ddpdoctor.collectors.log.engines import DIGITS, engine
from ddpdoctor.collectors.log.windows import BEHIND_BYTES, Readable, windows
from ddpdoctor.facts.log import Exit, Line, Traceback, Who
from ddpdoctor.facts.log.kernel import KernelLog
from ddpdoctor.facts.log.literals import literals_of
from ddpdoctor.facts.log.prefix import cleaned, split
from ddpdoctor.facts.xids import Xid

__all__ = ["Part", "Scanner", "joined"]

LONGEST_LINE = 2000
VARIANTS = 8
"""Of lines of one rank that differ in numbers alone, so many are kept."""
TAIL_LINES = 30
MOST_KINDS = 20_000
NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
TAIL_BYTES = BEHIND_BYTES
MOST_LINES = 20_000
MOST_TRACEBACKS = 2_000

TRACEBACK = b"Traceback (most recent call last)"
EXIT = b"(local_rank: "
SYNTAX = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


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
        known = [(literal, p) for p in dict.fromkeys(patterns) for literal in literals_of(p)]
        self._patterns = [(literal.translate(NO_DIGITS), pattern) for literal, pattern in known]
        self._engine = engine(
            {literal.encode() for literal, _ in known} | {TRACEBACK, EXIT, *(word.encode() for word in SYNTAX)}
        )
        self._of_kinds: dict[bytes, list[re.Pattern[str]]] = {}

    def scan(self, file: Readable, span_bytes: int | None = None) -> Part:
        """Everything that matters in a file, or in the lines that begin in its next `span_bytes`."""
        part = Part()
        keeper = _Keeper(part)
        last = b""
        for data, start, end in windows(file, span_bytes):
            last = data[max(start, end - LONGEST_LINE) : end]
            at = start
            for place in self._engine.candidates(data, start, end):
                part.newlines += data.count(b"\n", at, place)
                at = place
                self._look(data, place, part.newlines + 1, keeper)
            part.newlines += data.count(b"\n", at, end)
            part.size_bytes += end - start
            part.tail = _last_lines(data, end, part.newlines)
        keeper.finish()
        part.xids = keeper.kernel.finish(last.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
        return part

    def _look(self, data: bytes, place: int, number: int, keeper: _Keeper) -> None:
        """Each piece of a line between carriage returns is a line of its own to whoever reads it on a terminal."""
        for piece in pieces(data, place):
            self._look_at(Block(data, piece), number, keeper)

    def _look_at(self, block: Block, number: int, keeper: _Keeper) -> None:
        text = cleaned(block.line)
        if TRACEBACK.decode() in text:
            found = traceback_of(block, number)
            if found is not None:
                keeper.take_traceback(found)
        elif EXIT.decode() in text:
            ended = exit_of(block, number)
            if ended is not None:
                keeper.take_exit(ended)
        elif any(word in text for word in SYNTAX):
            broken = syntax_error_of(block, number)
            if broken is not None:
                keeper.take_traceback(broken)
        keeper.kernel.take(text, number)
        if any(known.search(text) for known in self._worth_trying(block.line, text)):
            keeper.take_line(text, number)

    def _worth_trying(self, line: str, text: str) -> list[re.Pattern[str]]:
        """The patterns that lines of this kind, digits aside, may match: the same for thousands of lines."""
        kind = line.encode().translate(None, DIGITS)
        known = self._of_kinds.get(kind)
        if known is None:
            plain = text.translate(NO_DIGITS)
            known = [re.compile(p) for p in dict.fromkeys(p for literal, p in self._patterns if literal in plain)]
            if len(self._of_kinds) < MOST_KINDS:
                self._of_kinds[kind] = known
        return known


def joined(parts: Sequence[Part]) -> Part:
    """The spans of one file put together: lines are numbered on, and kept once a rank over all of them."""
    if len(parts) == 1:
        return parts[0]
    whole = Part()
    keeper = _Keeper(whole)
    xids: list[Xid] = []
    for part in parts:
        before = whole.newlines
        for line in part.lines:
            keeper.take(replace(line, number=line.number + before, last=line.last + before if line.last else 0))
        whole.tracebacks += [
            replace(each, number=each.number + before, begin=each.begin + before) for each in part.tracebacks
        ]
        whole.exits += [replace(each, number=each.number + before) for each in part.exits]
        xids += [replace(each, line=None if each.line is None else each.line + before) for each in part.xids]
        whole.tail = [replace(line, number=line.number + before) for line in part.tail] or whole.tail
        whole.newlines += part.newlines
        whole.size_bytes += part.size_bytes
        whole.problem = whole.problem or part.problem
    keeper.finish()
    del whole.tracebacks[MOST_TRACEBACKS:]
    whole.xids = tuple(xids)
    return whole


class _Keeper:
    """Keeps each line once a rank, whatever numbers stand in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.kernel = KernelLog()
        self._known: dict[tuple[Who, str], list[int]] = {}
        self._counts: dict[int, tuple[int, int]] = {}

    def take_line(self, text: str, number: int) -> None:
        prefixed = split(text)
        self.take(Line(0, number, prefixed.text[:LONGEST_LINE].rstrip(), prefixed.who, prefixed.time))

    def take(self, line: Line) -> None:
        """A line, in the order of the file."""
        same = self._known.setdefault((line.who, _NUMBERS.sub("#", line.text)[:200]), [])
        if same and (len(same) >= VARIANTS or any(self._part.lines[i].text == line.text for i in same)):
            count, _ = self._counts.get(same[0], (1, 0))
            self._counts[same[0]] = (count + line.count, line.last or line.number)
        elif len(self._part.lines) < MOST_LINES:
            same.append(len(self._part.lines))
            self._part.lines.append(line)
            if line.count > 1:
                self._counts[same[-1]] = (line.count, line.last)

    def take_traceback(self, found: Traceback) -> None:
        is_known = any(each.number == found.number for each in self._part.tracebacks[-8:])
        if len(self._part.tracebacks) < MOST_TRACEBACKS and not is_known:
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
