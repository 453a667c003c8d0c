"""A line and the lines around it, also where ranks write at once; the rows of torchrun's summary."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Exit
from ddpdoctor.logs.distances import ROOT_CAUSE_LINES, ROW_ABOVE_LINES, ROW_BELOW_LINES
from ddpdoctor.logs.line_prefix import PrefixedLine, short_host, split_prefix, without_control_codes

__all__ = ["MOST_LINE_BYTES", "LineContext", "exit_of", "is_same_stream", "line_end", "line_of", "parsed_line"]

MOST_LINE_BYTES = 4000
"""So many bytes of a line are looked at, around the place that matters."""
BEFORE_BYTES = 16 << 10
CACHE_SIZE = 4000
"""So many lines are remembered as they were taken apart."""

_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)")
_RANK = re.compile(r"(?<!\d)(?P<rank>\d{1,18}) \(local_rank: (?P<local>\d{1,18})\)")
_CODE = re.compile(r"(?P<code>-?(?<!\d)\d{1,18}) \(pid: (?P<pid>\d{1,18})\)")


class LineContext:
    """A line in a chunk, and the lines around it. A carriage return begins a new line, as progress bars use it.

    Of a line longer than LONGEST only the part around `place` is taken.
    """

    __slots__ = ("_data", "end", "line", "start")

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        far = max(0, place - MOST_LINE_BYTES)
        start = max(data.rfind(b"\n", far, place), data.rfind(b"\r", far, place)) + 1
        self.start = start if start or not far else place - MOST_LINE_BYTES // 4
        self.end = line_end(data, place)
        self.line = data[self.start : self.end]

    def whole_line(self) -> bytes:
        """The line from where it was taken to its end, however long it is."""
        end = self._data.find(b"\n", self.start)
        return self._data[self.start : end if end >= 0 else len(self._data)]

    def text_before(self) -> bytes:
        """What stands before this line, as far as it is at hand."""
        return self._data[max(0, self.start - BEFORE_BYTES) : self.start]

    def lines_after(self, most: int) -> Iterator[str]:
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

    def lines_before(self, most: int) -> Iterator[str]:
        """The lines before this one, the nearest first, at most `most`."""
        end = self.start - 1
        for _ in range(most):
            if end <= 0:
                return
            start = self._data.rfind(b"\n", max(0, end - MOST_LINE_BYTES), end) + 1
            yield self._data[start:end].decode("utf-8", "replace")
            end = start - 1


def line_end(data: bytes, start: int) -> int:
    """Where the line ends in which `start` is, LONGEST bytes on at most."""
    stop = min(start + MOST_LINE_BYTES, len(data))
    newline = data.find(b"\n", start, stop)
    stop = newline if newline >= 0 else stop
    carriage_return = data.find(b"\r", start, stop)
    return carriage_return if carriage_return >= 0 else stop


def is_same_stream(head: PrefixedLine, other: PrefixedLine) -> bool:
    """Whether both lines have the same prefix, so that one process may have written both."""
    return head.stream is other.stream or head.stream == other.stream


def line_of(context: LineContext) -> PrefixedLine:
    """The line itself, taken apart."""
    return parsed_line(context.line.decode("utf-8", "replace"))


@functools.lru_cache(CACHE_SIZE)
def parsed_line(raw: str) -> PrefixedLine:
    """Of the tracebacks of many ranks that print at once, each is looked for among the lines of all."""
    return split_prefix(without_control_codes(raw))


def exit_of(context: LineContext, number: int) -> Exit | None:
    """The row of torchrun's summary around its line `rank : 3 (local_rank: 1)`."""
    own = line_of(context)
    named = _RANK.search(own.text)
    if named is None or not _FIELD.match(own.text):
        return None
    fields = dict(_fields(context.lines_before(ROW_ABOVE_LINES), own))
    fields |= dict(_fields(context.lines_after(ROW_BELOW_LINES), own))
    code = _CODE.search(fields.get("exitcode", ""))
    is_first = any("Root Cause" in line for line in context.lines_before(ROOT_CAUSE_LINES))
    if code is None and not (is_first and next(context.lines_after(1), None) is None):
        return None  # torchrun's root cause matters also where the text ends before its code
    who = replace(
        own.who,
        rank=int(named["rank"]),
        local_rank=int(named["local"]),
        host=short_host(fields.get("host", own.who.host or "")) or None,
        pid=int(code["pid"]) if code else None,
    )
    return Exit(0, number, int(code["code"]) if code else 1, who, time=fields.get("time"), is_first=is_first)


def _fields(lines: Iterator[str], own: PrefixedLine) -> Iterator[tuple[str, str]]:
    for raw in lines:
        each = parsed_line(raw)
        if not is_same_stream(own, each):
            continue
        found = _FIELD.match(each.text)
        if found is None or found["name"] == "rank":
            return
        yield found["name"], found["value"].strip()
