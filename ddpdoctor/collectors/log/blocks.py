"""What stands on several lines: Python tracebacks and the rows of torchrun's summary, also where ranks write at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Exit, Frame, Traceback
from ddpdoctor.facts.log.prefix import Prefixed, cleaned, split

__all__ = ["LONGEST", "Block", "beheaded", "exit_of", "line_end", "syntax_error_of", "traceback_of"]

LONGEST = 4000
"""So many bytes of a line are looked at, around the place that matters."""
MOST_LINES = 2000
"""So many lines are read on for the end of a traceback, those of other ranks in between included."""
MOST_FRAMES = 200
STRANGERS = 60
"""Between two lines of one traceback may stand so many of processes whose lines have the same prefix."""

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_CUT = re.compile(rb'(?:[^\n]*\n){0,8}?(?P<lead>[^"\n]{0,100}?)  File "[^"\n]+", line \d+, in ')
"""A traceback whose head stood above the beginning of the text."""
_CUT_BOX = re.compile(rb"(?:\xe2\x94\x82[^\n]*\n){1,400}\xe2\x95\xb0")
"""The same in the frame that rich draws."""
_BOXED = re.compile(r"│ (?P<file>/\S+\.py):(?P<line>\d+) in (?P<function>\S+)")
_EXCEPTION = re.compile(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s(?P<message>.*))?)?$")
_NAMES = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Failure", "Timeout", "Iteration", "Fault", "Err")
_HEAD = "Traceback (most recent call last)"
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error:")
_RANKED = re.compile(r": \(RANK (\d+)\)\s*$")
"""What torch.distributed.checkpoint puts behind the head of each traceback that it has gathered."""
_GROUP = re.compile(r"^\s*[|+][-| ]?\s?")
_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)")
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")


class Block:
    """A line in a chunk, and the lines around it. A carriage return begins a new line, as progress bars use it.

    Of a line longer than LONGEST only the part around `place` is taken.
    """

    __slots__ = ("_data", "end", "line", "start")

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        far = max(0, place - LONGEST)
        start = max(data.rfind(b"\n", far, place), data.rfind(b"\r", far, place)) + 1
        self.start = start if start or not far else place - LONGEST // 4
        self.end = line_end(data, place)
        self.line = data[self.start : self.end]

    def behind(self, most: int) -> Iterator[str]:
        """The lines after this one, at most `most`."""
        data, at = self._data, self.end
        for _ in range(most):
            while (ended := data[at : at + 1]) in (b"\r", b"\n"):
                at += 1
                if ended == b"\n":
                    break
            if at >= len(data):
                return
            end = line_end(data, at)
            yield data[at:end].decode("utf-8", "replace")
            at = end

    def before(self, most: int) -> Iterator[str]:
        """The lines before this one, the nearest first, at most `most`."""
        end = self.start - 1
        for _ in range(most):
            if end <= 0:
                return
            start = self._data.rfind(b"\n", max(0, end - LONGEST), end) + 1
            yield self._data[start:end].decode("utf-8", "replace")
            end = start - 1


def line_end(data: bytes, start: int) -> int:
    """Where the line ends in which `start` is, LONGEST bytes on at most."""
    stop = min(start + LONGEST, len(data))
    newline = data.find(b"\n", start, stop)
    stop = newline if newline >= 0 else stop
    carriage_return = data.find(b"\r", start, stop)
    return carriage_return if carriage_return >= 0 else stop


def traceback_of(block: Block, number: int) -> Traceback | None:
    """The traceback that begins at this line; None where its end cannot be found."""
    head = _own(block)
    if "─" in head.text:
        return _boxed(block, head, number)
    ranked = _RANKED.search(head.text)
    who = replace(head.who, local_rank=_index_of_spawned(block, head))
    who = replace(who, rank=int(ranked[1])) if ranked else who
    lead = _lead(block, head)
    indent = " " * (len(head.text) - len(head.text.lstrip(" ")))  # torchrun's summary indents what its worker recorded
    frames: list[Frame] = []
    strangers = 0
    for offset, raw in enumerate(block.behind(MOST_LINES), 1):
        each = _taken_apart(raw)
        if lead is not None:
            led = lead.match(each.text)
            each = each._replace(text=each.text[led.end() :] if led else " ")
        if not _same(head, each):
            continue
        each = each._replace(text=each.text.removeprefix(indent))
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
                    who,
                    head.time,
                    has_joined=head.who.rank is not None and b"[rank" in block.line,
                    begin=number,
                )
            strangers += 1
            if strangers > STRANGERS or _HEAD in text:
                return None
    return None


def beheaded(data: bytes) -> Traceback | None:
    """The traceback in whose middle a text begins, as one that was cut by `tail` or in a report."""
    if _CUT_BOX.match(data):
        return traceback_of(Block(f"╭─ {_HEAD} ─╮\n".encode() + data, 0), 0)
    cut = _CUT.match(data)
    if cut is None or b"Traceback" in cut[0] or b"hread 0x" in cut[0]:
        return None
    return traceback_of(Block(b"%s%s:\n%s" % (cut["lead"], _HEAD.encode(), data), 0), 0)


def _lead(block: Block, head: Prefixed) -> re.Pattern[str] | None:
    """What a logger of an unknown form puts before every line of the traceback; None where only its head has something.

    Where numbers in it count lines or time, they may differ.
    """
    words = head.text.partition(_HEAD)[0]
    if not words.strip():
        return None
    exact = re.escape(words)
    following = [_taken_apart(raw).text for raw in block.behind(4)]
    for known in (exact, re.sub(r"\d+", r"\\d+", exact)):
        if any(re.match(known + r'\s+File "', text) for text in following):
            return re.compile(known)
    return None


def _index_of_spawned(block: Block, head: Prefixed) -> int | None:
    """The local rank: mp.spawn numbers its processes, and tells the number above what one of them raised."""
    if head.who.local_rank is not None or head.who.rank is not None:
        return head.who.local_rank
    told = next((found for raw in block.before(2) if (found := _SPAWNED.search(raw))), None)
    return int(told[1]) if told else None


def syntax_error_of(block: Block, number: int) -> Traceback | None:
    """A script that Python cannot read: `File "train.py", line 12`, the line, a caret, and the exception, without a head."""
    own = _own(block)
    ended = _EXCEPTION.match(own.text)
    if ended is None:
        return None
    for raw in block.before(4):
        each = _taken_apart(raw)
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
        each = _taken_apart(raw)
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
    return head.stream is other.stream or head.stream == other.stream


def _own(block: Block) -> Prefixed:
    return _taken_apart(block.line.decode("utf-8", "replace"))


@functools.lru_cache(2 * MOST_LINES)
def _taken_apart(raw: str) -> Prefixed:
    """Of the tracebacks of many ranks that print at once, each is looked for among the lines of all."""
    return split(cleaned(raw))


def exit_of(block: Block, number: int) -> Exit | None:
    """The row of torchrun's summary around its line `rank : 3 (local_rank: 1)`."""
    own = _own(block)
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
        each = _taken_apart(raw)
        if not _same(own, each):
            continue
        found = _FIELD.match(each.text)
        if found is None or found["name"] == "rank":
            return
        yield found["name"], found["value"].strip()
