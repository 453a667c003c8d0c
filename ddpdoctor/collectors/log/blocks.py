"""What stands on several lines: Python tracebacks and the rows of torchrun's summary, also where ranks write at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Exit, Frame, Traceback
from ddpdoctor.facts.log.prefix import Prefixed, cleaned, split

__all__ = ["Block", "exit_of", "pieces", "syntax_error_of", "traceback_of"]

LONGEST = 4000
MOST_LINES = 2000
"""So many lines are read on for the end of a traceback, those of other ranks in between included."""
MOST_FRAMES = 200
STRANGERS = 60
"""Between two lines of one traceback may stand so many of processes whose lines have the same prefix."""

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_BOXED = re.compile(r"│ (?P<file>/\S+\.py):(?P<line>\d+) in (?P<function>\S+)")
_EXCEPTION = re.compile(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s(?P<message>.*))?)?$")
_NAMES = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Failure", "Timeout", "Iteration", "Fault", "Err")
_GROUP = re.compile(r"^\s*[|+][-| ]?\s?")
_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)")
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")


def pieces(data: bytes, place: int) -> Iterator[int]:
    """A place in each piece, between carriage returns, of the line around `place`; only near it where the line is long."""
    before = data.rfind(b"\n", max(0, place - LONGEST), place)
    start = before + 1 if before >= 0 or place <= LONGEST else place - LONGEST // 4
    end = data.find(b"\n", place, place + LONGEST)
    end = end if end >= 0 else min(len(data), place + LONGEST)
    while start < end:
        stop = data.find(b"\r", start, end)
        stop = stop if stop >= 0 else end
        if stop > start:
            yield start
        start = stop + 1


class Block:
    """A line in a chunk, and the lines around it. A carriage return begins a new line, as progress bars use it."""

    __slots__ = ("_data", "_end", "_start", "line")

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        cut = max(0, place - LONGEST)
        self._start = max(data.rfind(b"\n", cut, place), data.rfind(b"\r", cut, place), cut - 1) + 1
        self._end = self._ending(place)
        self.line = data[self._start : self._end].decode("utf-8", "replace")

    def behind(self, most: int) -> Iterator[str]:
        """The lines after this one, at most `most`."""
        at = self._end
        for _ in range(most):
            while self._data[at : at + 1] in (b"\r", b"\n"):
                at += 1
                if self._data[at - 1 : at] == b"\n":
                    break
            if at >= len(self._data):
                return
            end = self._ending(at)
            yield self._data[at:end].decode("utf-8", "replace")
            at = end

    def before(self, most: int) -> Iterator[str]:
        """The lines before this one, the nearest first, at most `most`."""
        end = self._start - 1
        for _ in range(most):
            if end <= 0:
                return
            start = self._data.rfind(b"\n", max(0, end - LONGEST), end) + 1
            yield self._data[start:end].decode("utf-8", "replace")
            end = start - 1

    def _ending(self, start: int) -> int:
        stop = min(start + LONGEST, len(self._data))
        ends = [at for at in (self._data.find(b"\n", start, stop), self._data.find(b"\r", start, stop)) if at >= 0]
        return min(ends, default=stop)


def traceback_of(block: Block, number: int) -> Traceback | None:
    """The traceback that begins at this line; None where its end cannot be found."""
    head = split(cleaned(block.line))
    if "─" in head.text:
        return _boxed(block, head, number)
    frames: list[Frame] = []
    strangers = 0
    for offset, raw in enumerate(block.behind(MOST_LINES), 1):
        each = split(cleaned(raw))
        if not _same(head, each):
            continue
        text = _GROUP.sub("", each.text) if head.text.lstrip()[:1] in "+|" else each.text
        frame = _FRAME.match(text)
        if frame is not None and len(frames) < MOST_FRAMES:
            frames.append(Frame(frame["file"], int(frame["line"]), (frame["function"] or "").strip()))
            strangers = 0
        elif text[:1] not in (" ", "\t", ""):
            ended = _EXCEPTION.match(text)
            if ended is not None and (frames or ended["name"].endswith(_NAMES)) and _is_exception(ended["name"], text):
                return Traceback(
                    0,
                    number + offset,
                    ended["name"],
                    (ended["message"] or "")[:1000],
                    tuple(frames),
                    head.who,
                    head.time,
                    has_joined=head.who.rank is not None and "[rank" in block.line,
                    begin=number,
                )
            strangers += 1
            if strangers > STRANGERS or "Traceback (most recent call last)" in text:
                return None
    return None


def syntax_error_of(block: Block, number: int) -> Traceback | None:
    """A script that Python cannot read: `File "train.py", line 12`, the line, a caret, and the exception, without a head."""
    own = split(cleaned(block.line))
    ended = _EXCEPTION.match(own.text)
    if ended is None:
        return None
    for raw in block.before(4):
        each = split(cleaned(raw))
        frame = _FRAME.match(each.text)
        if frame is not None and _same(own, each):
            place = Frame(frame["file"], int(frame["line"]))
            return Traceback(
                0, number, ended["name"], ended["message"] or "", (place,), own.who, own.time, begin=number
            )
    return None


def _boxed(block: Block, head: Prefixed, number: int) -> Traceback | None:
    """A traceback in the frame that rich draws: `/job/train.py:71 in main`, and the exception below the frame."""
    frames: list[Frame] = []
    is_closed = False
    for offset, raw in enumerate(block.behind(MOST_LINES), 1):
        each = split(cleaned(raw))
        if not _same(head, each) or not each.text.strip():
            continue
        frame = _BOXED.match(each.text)
        if frame is not None and len(frames) < MOST_FRAMES:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"]))
        elif is_closed:
            ended = _EXCEPTION.match(each.text.rstrip())
            if ended is None:
                return None
            message = (ended["message"] or "")[:1000]
            return Traceback(
                0, number + offset, ended["name"], message, tuple(frames), head.who, head.time, begin=number
            )
        is_closed = is_closed or each.text.startswith("╰")
    return None


def _is_exception(name: str, text: str) -> bool:
    return name.endswith(_NAMES) or "." in name or (name[0].isupper() and ":" in text[: len(name) + 1])


def _same(head: Prefixed, other: Prefixed) -> bool:
    return head.stream == other.stream


def exit_of(block: Block, number: int) -> Exit | None:
    """The row of torchrun's summary around its line `rank : 3 (local_rank: 1)`."""
    own = split(cleaned(block.line))
    named = _RANK.search(own.text)
    if named is None or not _FIELD.match(own.text):
        return None
    fields = dict(_fields(block.before(4), own))
    fields |= dict(_fields(block.behind(6), own))
    code = _CODE.search(fields.get("exitcode", ""))
    if code is None:
        return None
    who = replace(
        own.who,
        rank=int(named["rank"]),
        local_rank=int(named["local"]),
        host=fields.get("host", own.who.host or "").partition(".")[0] or None,
        pid=int(code["pid"]),
    )
    is_first = any("Root Cause" in line for line in block.before(5))
    return Exit(0, number, int(code["code"]), who, time=fields.get("time"), is_first=is_first)


def _fields(lines: Iterator[str], own: Prefixed) -> Iterator[tuple[str, str]]:
    for raw in lines:
        each = split(cleaned(raw))
        if not _same(own, each):
            continue
        found = _FIELD.match(each.text)
        if found is None or found["name"] == "rank":
            return
        yield found["name"], found["value"].strip()
