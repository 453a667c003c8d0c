"""Where Python was when a signal ended it, as faulthandler writes: `Fatal Python error: Segmentation fault`, and its stack."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import FATAL, Traceback, TracebackFrame
from ddpdoctor.logs.distances import FATAL_STACK_LINES
from ddpdoctor.logs.tracebacks.line_context import LineContext, is_same_stream, line_of, parsed_line

__all__ = ["fatal_traceback"]

_FATAL = re.compile(re.escape(FATAL) + r": (?P<message>.+)")
_THREAD = re.compile(r"\s*(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def fatal_traceback(context: LineContext, number: int) -> Traceback | None:
    """The stack of the thread that failed, outermost first; of the first thread where none is called the current one."""
    own = line_of(context)
    fatal = _FATAL.search(own.text)
    if fatal is None:
        return None
    frames: list[TracebackFrame] = []
    is_current = is_read = False
    for raw in context.lines_after(FATAL_STACK_LINES):
        each = parsed_line(raw)
        if not is_same_stream(own, each):
            continue
        thread, frame = _THREAD.match(each.text), _FRAME.match(each.text)
        if thread is not None and is_current:
            break
        if thread is not None:
            is_current = thread["current"] == "Current thread"
            is_read = is_current or not frames
            frames = [] if is_read else frames
        elif frame is not None and is_read:
            frames.append(TracebackFrame(frame["file"], int(frame["line"]), frame["function"]))
        elif _FATAL.search(each.text) or each.text.startswith("Extension modules"):
            break
    stack = tuple(frames[::-1])
    return Traceback(0, number, FATAL, fatal["message"], stack, own.who, own.time, begin=number) if stack else None
