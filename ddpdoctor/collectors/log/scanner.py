"""Reads text: finds the relevant lines among millions, with bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from ddpdoctor.collectors.log.engines import DIGITS, engine
from ddpdoctor.collectors.log.windows import BEHIND_BYTES, Readable, windows
from ddpdoctor.facts.log import Exit, JobMark, LogLine, MarkKind, Traceback, Who
from ddpdoctor.facts.nccl_line import without_function
from ddpdoctor.facts.xids import Xid
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.distances import QUOTED_LINES, TAIL_LINES
from ddpdoctor.logs.job_marks import MARK_WORDS, mark_in
from ddpdoctor.logs.kernel_log import WORDS, KernelLog
from ddpdoctor.logs.line_prefix import split_prefix, without_control_codes
from ddpdoctor.logs.required_literals import literals_of
from ddpdoctor.logs.tracebacks.fatal_signal import fatal_traceback
from ddpdoctor.logs.tracebacks.line_context import LineContext, exit_of
from ddpdoctor.logs.tracebacks.old_summary import exception_in_summary, exception_of_handler
from ddpdoctor.logs.tracebacks.partial import exception_of_rank, headless_traceback, last_exception
from ddpdoctor.logs.tracebacks.quoted import MOST_QUOTED_BYTES, quoted_exceptions
from ddpdoctor.logs.tracebacks.reader import syntax_error_of, traceback_of

__all__ = ["ScannedPart", "Scanner", "joined"]

LONGEST_LINE = 2000
VARIANTS = 8
"""How many lines of one rank that differ only in numbers are kept."""
MOST_KINDS = 10_000
"""How many kinds of lines are cached."""
NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
TAIL_BYTES = BEHIND_BYTES
MOST_LINES = 20_000
MOST_TRACEBACKS = 2_000
MOST_ALONE = 200
MOST_MARKS = 500

READERS: dict[str, Callable[[LineContext, int], Traceback | Exit | None]] = {
    "Traceback (most recent call last)": traceback_of,
    "Fatal Python error: ": fatal_traceback,
    "(local_rank: ": exit_of,
    "  msg:": exception_in_summary,
    **dict.fromkeys(('"message": "', '"message":"'), exception_of_handler),
    **dict.fromkeys(("SyntaxError: ", "IndentationError: ", "TabError: "), syntax_error_of),
    **dict.fromkeys(("Error: ", "Exception: "), exception_of_rank),
}
"""Text in the first or last line of a multi-line record, and the function that reads the record."""
_BAR = re.compile(r"^[^|\n]{0,80}\d%\|[^|\n]*\| *\d+/\d+ \[[^\]\n]*\](?=\[|[A-Z][a-z]+Error)")
"""A progress bar with output of another process on the same line."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(slots=True)
class ScannedPart:
    """The result of one input or a span of it. Sources are numbered when parts are joined.

    `newlines` counts line ends; `problem` is why it was not read to its end.
    """

    lines: list[LogLine] = field(default_factory=list)
    tracebacks: list[Traceback] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    head: list[LogLine] = field(default_factory=list)
    tail: list[LogLine] = field(default_factory=list)
    marks: list[JobMark] = field(default_factory=list)
    xids: tuple[Xid, ...] = ()
    newlines: int = 0
    size_bytes: int = 0
    problem: str | None = None


class _LineKind(NamedTuple):
    """What lines that differ only in digits share: the reader of records that begin there, and the patterns that may match."""

    reader: Callable[[LineContext, int], Traceback | Exit | None] | None
    is_kernels: bool
    is_mark: bool
    patterns: tuple[re.Pattern[str], ...]


class Scanner:
    """Finds lines that match one of many patterns. Created once, used for every input."""

    def __init__(self, patterns: Sequence[str]) -> None:
        known = [(literal, p) for p in dict.fromkeys(patterns) for literal in literals_of(p)]
        self._patterns = [(literal.translate(NO_DIGITS), pattern) for literal, pattern in known]
        self._engine = engine(
            {literal.encode() for literal, _ in known} | {word.encode() for word in (*READERS, *MARK_WORDS)}
        )
        self._kinds: dict[bytes, _LineKind] = {}

    def scan(self, file: Readable, behind: int = 0, most: int | None = None) -> ScannedPart:
        """Everything relevant in a file, or in the `most` bytes after the first `behind`."""
        part = ScannedPart()
        keeper = _KeptLines(part)
        data, start, end = b"", 0, 0
        for data, start, end in windows(file, behind, most):
            if not (behind or part.size_bytes):
                keeper.take_record(headless_traceback(data))
                part.head = _first_lines(data)
            at = start
            for place in self._engine.candidates(data, start, end):
                part.newlines += data.count(b"\n", at, place)
                at = place
                self._look(LineContext(data, place), part.newlines + 1, keeper)
            part.newlines += data.count(b"\n", at, end)
            part.size_bytes += end - start
        newlines = part.newlines if data[end - 1 : end] == b"\n" else part.newlines + 1
        part.tail = _last_lines(data[max(0, end - TAIL_BYTES) : end], newlines, is_cut=end > TAIL_BYTES)
        if most is None and end:
            keeper.take_record(last_exception(data, end, part.newlines))
            if not behind and start == 0 and end <= MOST_QUOTED_BYTES and part.newlines <= QUOTED_LINES:
                keeper.take_quoted(data[:end])
        keeper.finish()
        last = data[max(start, end - LONGEST_LINE) : end].decode("utf-8", "replace")
        part.xids = keeper.kernel.finish(last.rstrip().rpartition("\n")[2])
        return part

    def _look(self, context: LineContext, number: int, keeper: _KeptLines) -> None:
        key = context.line.translate(None, DIGITS)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kind(context)
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            self._kinds[key] = kind
        if kind == NOTHING:
            return
        text = _unwrapped(context)
        if kind.reader is not None and (kind.reader is not exception_of_rank or not keeper.has_enough):
            keeper.take_record(kind.reader(context, number))
        if kind.is_kernels:
            keeper.kernel.take(text, number)
        if kind.is_mark:
            keeper.take_mark(text, number, context)
        plain = without_function(text)
        for pattern in kind.patterns:
            found = pattern.search(plain)
            if found is not None:
                keeper.take_match(text, number, found)
                return

    def _kind(self, context: LineContext) -> _LineKind:
        text = without_control_codes(context.line.decode("utf-8", "replace"))
        plain = text.translate(NO_DIGITS)
        return _LineKind(
            next((reader for word, reader in READERS.items() if word in text), None),
            any(word in text for word in WORDS),
            any(word in text for word in MARK_WORDS),
            tuple(re.compile(p) for p in dict.fromkeys(p for literal, p in self._patterns if literal in plain)),
        )


NOTHING = _LineKind(None, False, False, ())
_OPEN = re.compile(r"\([^()\n]{0,200}$")
_REST = re.compile(r"(?:[^()\n]|\([^()\n]{0,20}\)){0,200}\)")


def _unwrapped(context: LineContext) -> str:
    """The line; if a terminal wrapped it inside a bracket, with the rest from the next line of the same stream."""
    text = without_control_codes(context.line.decode("utf-8", "replace"))
    if _OPEN.search(text, max(0, len(text) - LONGEST_LINE)) is None:
        return text
    rest = next((without_control_codes(each) for each in context.lines_after(1)), "")
    own = split_prefix(rest)
    is_same = own.stream in (Who(), split_prefix(text).stream)
    return text + own.text if is_same and _REST.match(own.text) else text


def joined(parts: Sequence[ScannedPart]) -> ScannedPart:
    """The spans of one file joined: lines are renumbered, and kept once per rank over all of them."""
    if len(parts) == 1:
        return parts[0]
    whole = ScannedPart()
    keeper = _KeptLines(whole)
    xids: list[Xid] = []
    for part in parts:
        before = whole.newlines
        for line in part.lines:
            keeper.take(replace(line, number=line.number + before, last=line.last + before if line.last else 0))
        for traceback in part.tracebacks:
            keeper.take_record(replace(traceback, number=traceback.number + before, begin=traceback.begin + before))
        whole.exits += [replace(each, number=each.number + before) for each in part.exits]
        xids += [replace(xid, line=None if xid.line is None else xid.line + before) for xid in part.xids]
        whole.head = whole.head or part.head
        for mark in part.marks:
            tail = tuple(replace(line, number=line.number + before) for line in mark.tail)
            keeper.keep_mark(replace(mark, number=mark.number + before, tail=tail))
        whole.tail = [replace(line, number=line.number + before) for line in part.tail] or whole.tail
        whole.newlines += part.newlines
        whole.size_bytes += part.size_bytes
        whole.problem = whole.problem or part.problem
    keeper.finish()
    del whole.tracebacks[MOST_TRACEBACKS:]
    whole.xids = tuple(xids)
    return whole


class _KeptLines:
    """Keeps each line once per rank; lines that differ only in numbers count as one."""

    def __init__(self, part: ScannedPart) -> None:
        self._part = part
        self.kernel = KernelLog()
        self._known: dict[tuple[Who, str], list[int]] = {}
        self._counts: dict[int, tuple[int, int]] = {}
        self._ends: set[int] = set()
        self._ids: dict[str, str] = {}

    def take_match(self, text: str, number: int, found: re.Match[str]) -> None:
        """A line that a signature matches; of a long line, the part around the match."""
        said, who, time, _ = split_prefix(_BAR.sub("", text))
        prefix = len(text) - len(said)
        if found.end() - prefix > LONGEST_LINE:
            said = said[max(0, found.start() - prefix - LONGEST_LINE // 4) :]
        said = said[:LONGEST_LINE].rstrip()
        if not self._is_known(who, said, number):
            self._part.lines.append(LogLine(0, number, said, who, time))

    def take(self, line: LogLine) -> None:
        """A line that was kept in a span of the file, in the order of the file."""
        if not self._is_known(line.who, line.text, line.last or line.number, line.count):
            if line.count > 1:
                self._counts[len(self._part.lines)] = (line.count, line.last)
            self._part.lines.append(line)

    def _is_known(self, who: Who, text: str, number: int, count: int = 1) -> bool:
        """Whether enough such lines of this rank are kept; further ones are only counted."""
        kept = self._part.lines
        same = self._known.setdefault((who, _NUMBERS.sub("#", text[:400])[:200]), [])
        if same and (len(same) >= VARIANTS or any(kept[i].text == text for i in same)):
            before, _ = self._counts.get(same[0], (1, 0))
            self._counts[same[0]] = (before + count, number)
            return True
        if len(kept) < MOST_LINES:
            same.append(len(kept))
            return False
        return True

    def take_record(self, found: Traceback | Exit | None) -> None:
        """A multi-line record; None if its end was not found."""
        if isinstance(found, Exit):
            self._part.exits.append(found)
        elif found is not None and found.number not in self._ends:
            self._ends.add(found.number)
            self._part.tracebacks.append(found)
            del self._part.tracebacks[MOST_TRACEBACKS:]

    def take_quoted(self, data: bytes) -> None:
        """What a short text quotes, where it holds no traceback."""
        if not self._part.tracebacks:
            for exception in quoted_exceptions(data):
                self.take_record(exception)

    def take_mark(self, text: str, number: int, context: LineContext) -> None:
        """A line that may distinguish jobs, with the lines before it."""
        said, who, _, _ = split_prefix(text)
        mark = mark_in(said)
        if mark is not None and self._is_news(mark.kind, mark.ids):
            tail = _last_lines(context.text_before(), number - 1)
            self.keep_mark(JobMark(0, number, mark.kind, mark.ids, mark.by, who, tuple(tail)))

    def keep_mark(self, mark: JobMark) -> None:
        """Keep a mark, unless it repeats the ids of earlier ones."""
        if self._is_news(mark.kind, mark.ids):
            self._part.marks.append(mark)
            self._ids.update(mark.ids)

    def _is_news(self, kind: MarkKind, ids: tuple[tuple[str, str], ...]) -> bool:
        is_known = all(self._ids.get(name) == value for name, value in ids)
        return len(self._part.marks) < MOST_MARKS and not (kind is MarkKind.ID and is_known)

    @property
    def has_enough(self) -> bool:
        """Whether so many exceptions are known that one more without a traceback adds nothing."""
        return len(self._ends) >= MOST_ALONE

    def finish(self) -> None:
        for index, (count, last) in self._counts.items():
            self._part.lines[index] = replace(self._part.lines[index], count=count, last=last)


def _first_lines(data: bytes) -> list[LogLine]:
    """The first nonempty lines."""
    found: list[LogLine] = []
    for number, line in enumerate(data[:TAIL_BYTES].split(b"\n"), 1):
        text = _line_of(next((piece for piece in line.split(b"\r") if piece.strip()), b""), number)
        found += [text] if text.text else []
        if len(found) == TAIL_LINES:
            break
    return found


def _last_lines(data: bytes, number: int, *, is_cut: bool = False) -> list[LogLine]:
    """The last nonempty lines of a text; `number` is that of its last line, and the first may be cut."""
    found: list[LogLine] = []
    raw = data.removesuffix(b"\n").split(b"\n")
    for line in reversed(raw[1:] if is_cut else raw):
        text = _line_of(next((piece for piece in reversed(line.split(b"\r")) if piece.strip()), b""), number)
        found += [text] if text.text else []
        number -= 1
        if len(found) == TAIL_LINES:
            break
    return found[::-1]


def _line_of(raw: bytes, number: int) -> LogLine:
    """A line, relevant or not; its text may be empty."""
    prefixed = split_prefix(without_control_codes(raw[:LONGEST_LINE].decode("utf-8", "replace")))
    return LogLine(0, number, prefixed.text.rstrip(), prefixed.who, prefixed.time)
