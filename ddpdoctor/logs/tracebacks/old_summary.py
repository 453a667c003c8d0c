"""What the summaries of torch 1.9 and 1.10 say under `msg:` of a worker: its exception, and where it was."""

from __future__ import annotations

import itertools
import re

from ddpdoctor.facts.log import Traceback, TracebackFrame
from ddpdoctor.logs.distances import HANDLER_HEAD_LINES, HANDLER_JSON_LINES, SUMMARY_JSON_LINES
from ddpdoctor.logs.tracebacks.line_context import LineContext, is_same_stream, line_of, parsed_line
from ddpdoctor.logs.tracebacks.reader import EXCEPTION, HEAD

__all__ = ["exception_in_summary", "exception_of_handler"]

_FIELD = re.compile(r'\s*msg:\s*(?:"(?P<text>.*?)"?)?')
_MESSAGE = re.compile(r'"message": "(?P<text>(?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r'File \\?"(?P<file>[^"\\]{1,400})\\?", line (?P<line>\d+)(?:, in (?P<function>[\w.<>]+))?')
_END = re.compile(r"\s*(?:[=*-]{5,}|Other Failures|\[\d+\]:)")
_HANDLER_MESSAGE = re.compile(r'"message": ?"(?P<text>(?:[^"\\]|\\.)*)')
_OF_HANDLER = re.compile(r'error_handler|"message": ?\{')
_NAMED = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)$")


def exception_in_summary(context: LineContext, number: int) -> Traceback | None:
    """The exception of a row of the summary; None where it names none, or holds a traceback, which is read as such."""
    own = line_of(context)
    field = _FIELD.fullmatch(own.text.rstrip())
    if field is None:
        return None
    text = field["text"] or ""
    frames: tuple[TracebackFrame, ...] = ()
    if not text:
        lines = (
            each.text
            for raw in context.lines_after(SUMMARY_JSON_LINES)
            if is_same_stream(own, each := parsed_line(raw))
        )
        saved = "\n".join(itertools.takewhile(lambda line: not _END.match(line), lines))
        message = _MESSAGE.search(saved)
        if message is None or HEAD in saved:
            return None
        text = message["text"].replace('\\"', '"').partition("\\n")[0]
        frames = tuple(TracebackFrame(f["file"], int(f["line"]), f["function"] or "") for f in _FRAME.finditer(saved))
    ended = EXCEPTION.match(text)
    if ended is None or ":" not in text:
        return None
    return Traceback(0, number, ended["name"], ended["message"] or "", frames, own.who, own.time, begin=number)


def exception_of_handler(context: LineContext, number: int) -> Traceback | None:
    """The exception that torch's error_handler prints as JSON; None where a traceback follows, which is read as such."""
    own = line_of(context)
    message = _HANDLER_MESSAGE.search(own.text)
    if message is None or HEAD in (
        behind := "\n".join((context.line.decode("utf-8", "replace"), *context.lines_after(HANDLER_JSON_LINES)))
    ):
        return None
    above = [
        each.text for raw in context.lines_before(HANDLER_HEAD_LINES) if is_same_stream(own, each := parsed_line(raw))
    ]
    if not any(_OF_HANDLER.search(text) for text in (own.text[: message.start()], *above)):
        return None
    if any(_FIELD.fullmatch(text.rstrip()) for text in above):
        return None  # a row of the summary
    ended = EXCEPTION.match(message["text"].replace('\\"', '"').partition("\\n")[0])
    if ended is None or _NAMED.match(ended["name"]) is None:
        return None
    frames = tuple(TracebackFrame(f["file"], int(f["line"]), f["function"] or "") for f in _FRAME.finditer(behind))
    return Traceback(0, number, ended["name"], ended["message"] or "", frames, own.who, own.time, begin=number)
