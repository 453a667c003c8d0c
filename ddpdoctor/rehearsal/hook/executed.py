"""Which lines of the user's own files ran, so that the report can say which code the rehearsal did not reach.

`sys.monitoring` on Python 3.12 and later, `sys.settrace` before. A line is reported once. Tracing of a function stops when all
its lines ran, or after MOST_EVENTS events; then the lines that did not run are unknown.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import is_of_user

__all__ = ["begin", "report"]

MOST_EVENTS = 20_000
"""Tracing of a function stops after this many events: tracing a long loop would slow the script."""
TOOL = 4
"""The number of this tool for sys.monitoring; 0 to 2 and 5 are reserved for debuggers, coverage, profilers and optimizers."""

Function = tuple[str, int, str]

_lines: dict[str, set[int]] = {}
_told: dict[str, int] = {}
_left: dict[Function, set[int]] = {}
_events: dict[Function, int] = {}
_unfollowed: list[tuple[str, int, int]] = []


def begin() -> None:
    """Follow the user's files from now on, in all threads and forked processes."""
    if sys.version_info >= (3, 12):
        if sys.monitoring.get_tool(TOOL) is None:
            _monitor(sys.monitoring)
        return
    threading.settrace(_called)
    sys.settrace(_called)


def report() -> None:
    """Send the lines that ran since the last report."""
    for file, lines in list(_lines.items()):
        if len(lines) > _told.get(file, 0):
            _told[file] = len(lines)
            channel().say("lines", file=file, lines=sorted(lines))
    while _unfollowed:
        file, first, last = _unfollowed.pop()
        channel().say("unfollowed", file=file, first=first, last=last)


def _monitor(monitoring: Any) -> None:
    events = monitoring.events
    monitoring.use_tool_id(TOOL, "ddpdoctor")

    def started(code: CodeType, _: int) -> Any:
        if is_of_user(code.co_filename):
            monitoring.set_local_events(TOOL, code, events.LINE)
        return monitoring.DISABLE

    def line_ran(code: CodeType, line: int) -> Any:
        _lines.setdefault(code.co_filename, set()).add(line)
        return monitoring.DISABLE

    monitoring.register_callback(TOOL, events.PY_START, started)
    monitoring.register_callback(TOOL, events.LINE, line_ran)
    monitoring.set_events(TOOL, events.PY_START)


def _called(frame: FrameType, event: str, arg: Any) -> Any:
    """The trace function of all calls: None for what is not to be followed."""
    code = frame.f_code
    if not is_of_user(code.co_filename):
        return None
    function = (code.co_filename, code.co_firstlineno, code.co_name)
    left = _left.get(function)
    if left is None:
        left = _left[function] = {line for _, _, line in code.co_lines() if line is not None}
    return _Follower(function, left) if left else None


class _Follower:
    """The trace function of one call of a user's function."""

    __slots__ = ("_function", "_left")

    def __init__(self, function: Function, left: set[int]) -> None:
        self._function, self._left = function, left

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line":
            return self
        line = frame.f_lineno
        if line in self._left:
            self._left.discard(line)
            _lines.setdefault(self._function[0], set()).add(line)
        elif self._is_too_long():
            return None
        return self if self._left else None

    def _is_too_long(self) -> bool:
        count = _events[self._function] = _events.get(self._function, 0) + 1
        if count == MOST_EVENTS:
            _unfollowed.append((self._function[0], min(self._left), max(self._left)))
            self._left.clear()
        return count >= MOST_EVENTS
