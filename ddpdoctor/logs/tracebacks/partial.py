"""What is left of a traceback whose head the text does not hold: its end, or the line of its exception alone."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpdoctor.facts.log import Traceback, TracebackFrame
from ddpdoctor.late_pattern import pattern
from ddpdoctor.logs.distances import CONTINUED_LINES, EXCEPTION_ABOVE_LINES, EXIT_LINES, FRAMES_ABOVE_LINES
from ddpdoctor.logs.line_prefix import PrefixedLine
from ddpdoctor.logs.tracebacks.line_context import MOST_LINE_BYTES, LineContext, is_same_stream, line_of, parsed_line
from ddpdoctor.logs.tracebacks.reader import EXCEPTION, FRAME, HEAD, IGNORED, message_of, traceback_of

__all__ = ["exception_of_rank", "headless_traceback", "last_exception"]


_CUT = pattern(
    rb'(?:[^\n]*\n){0,8}?(?P<lead>[^"\n]{0,100}?) {0,12}(?:File "[^"\n]+", line \d+, in |File "[^"\n]{40,}", line \d+,? ?i? *\n)'
)
"""A traceback whose head stood above the beginning of the text."""
_CUT_BOX = pattern(rb"(?:\xe2\x94\x82[^\n]*\n){1,400}\xe2\x95\xb0")
"""The same in the frame that rich draws."""
_OF_KERNEL = pattern(r"(<\d+>)?\[[ \d.]+\] |.{1,60} kernel: |.{0,60}LustreError")
_DIGITS = pattern(rb"\d+")
_JOINED = pattern(rb"(?<! ) {2,}(?=(?:[^\[\n ][^\[\n]{0,80})?\[rank\d+\]: )")
"""Between records that a wide terminal, padded to its width, left in one line."""
_CLASS = pattern(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)")
_METRIC = pattern(r"[-+]?\d*\.\d+")
"""`MeanSquaredError: 0.25` is no exception."""
_HARMLESS = pattern(
    r"\b(ignor(ed|ing)|skipp(ed|ing)|retrying|try(ing)? again|fall(ing|s)? ?back|continuing|caught|handled|recovered)\b",
    re.IGNORECASE,
)
"""Words of a message about an exception that ended no process."""
_ON_THE_WAY_OUT = pattern(
    r"\s|\W*$|.*(\bERROR\b|Error\b|[Ff]ailed\b|[Aa]borted\b|[Aa]borting\b|[Tt]erminat|[Kk]illed\b|exit(ed|s) with|[Ee]xit code"
    r"|exitcode|closing signal|core dumped|non-zero|destroy_process_group|resource_tracker|leaked|frame #|srun:|slurmstepd)"
)


def headless_traceback(data: bytes) -> Traceback | None:
    """The traceback in whose middle a text begins, as one that was cut by `tail` or in a report."""
    empty = len(data) - len(data.lstrip(b"\r\n"))
    if empty:
        found = headless_traceback(data[empty:])
        passed = data.count(b"\n", 0, empty)
        return found and replace(found, number=found.number + passed, begin=found.begin and found.begin + passed)
    end = data.find(b"\n", 0, MOST_LINE_BYTES) + 1
    records = _JOINED.sub(b"\n", data[:end])
    found = _beheaded(records + data[end:])
    joined = records.count(b"\n") - 1
    return found if found is None or joined <= 0 else replace(found, number=max(1, found.number - joined))


def _beheaded(data: bytes) -> Traceback | None:
    if _CUT_BOX.match(data):
        return traceback_of(LineContext(f"╭─ {HEAD} ─╮\n".encode() + data, 0), 0)
    if (alone := _first_exception(data)) is not None:
        return alone
    cut = _CUT.match(data)
    if cut is None or b"Traceback" in cut[0] or b"hread 0x" in cut[0]:
        return None
    lead = cut["lead"]
    following = data[cut.end() : cut.end() + MOST_LINE_BYTES].split(b"\n")[1:2]
    if lead.strip() and not any(_DIGITS.sub(b"", line).startswith(_DIGITS.sub(b"", lead)) for line in following):
        lead = b""  # another process began to write in that line
    return traceback_of(LineContext((b"%s %s:\n%s" % (lead.rstrip(), HEAD.encode(), data)).lstrip(), 0), 0)


def exception_of_rank(context: LineContext, number: int) -> Traceback | None:
    """An exception that torch printed for a rank (`[rank3]: ValueError: …`), with the frames above it."""
    return _exception(context, number) if b"[rank" in context.line[:MOST_LINE_BYTES] else None


def last_exception(data: bytes, end: int, newlines: int) -> Traceback | None:
    """The exception with which a text ends, but for what processes print on their way out.

    Args:
        data: with the text's end at `end`, where `newlines` lines have ended.
    """
    number = newlines if data[end - 1 : end] == b"\n" else newlines + 1
    at = end - 1 if data[end - 1 : end] == b"\n" else end
    found = None
    for _ in range(EXIT_LINES):
        context = LineContext(data[:end] if at == end else data, at)
        if (alone := _exception(context, number)) is not None and not _HARMLESS.search(alone.message):
            found = alone
        elif not _ON_THE_WAY_OUT.match(line_of(context).text[:MOST_LINE_BYTES]):
            break
        at, number = context.start - 1, number - 1
        if at < 0:
            break
    return found


def _first_exception(data: bytes) -> Traceback | None:
    """The last line of a traceback, with which a text begins, but for code of its last frame."""
    at = 0
    for number in range(1, EXIT_LINES):
        context = LineContext(data, at)
        text = line_of(context).text
        if text.strip() and not text.startswith("    "):
            return _exception(context, number)
        at = context.end + 1
        if at >= min(len(data), MOST_LINE_BYTES):
            break
    return None


def _exception(context: LineContext, number: int) -> Traceback | None:
    """What the line says was raised, where nothing above it shows that this belongs to something else."""
    own = line_of(context)
    if not _is_exception(own.text) or _OF_KERNEL.match(context.line.decode("utf-8", "replace")):
        return None
    ended = EXCEPTION.match(own.text.rstrip())
    if ended is None or _METRIC.match(ended["message"] or ""):
        return None
    below = map(parsed_line, context.lines_after(CONTINUED_LINES))
    message = message_of(ended, (each.text for each in below if is_same_stream(own, each)))
    frames = _frames_above(context, own) if message else None
    if frames is None:
        return None
    has_joined = b"[rank" in context.line
    return Traceback(0, number, ended["name"], message, frames, own.who, own.time, has_joined, begin=number)


def _is_exception(text: str) -> bool:
    name, colon, _ = text.partition(":")
    return bool(colon) and _CLASS.fullmatch(name) is not None


def _frames_above(context: LineContext, own: PrefixedLine) -> tuple[TracebackFrame, ...] | None:
    """The frames right above, None where a head or another exception is above."""
    frames: list[TracebackFrame] = []
    is_above = False  # of the frames
    for passed, raw in enumerate(context.lines_before(FRAMES_ABOVE_LINES), 1):
        each = parsed_line(raw)
        if not is_same_stream(own, each):
            continue
        if HEAD in each.text or IGNORED in each.text:
            return None
        is_above = is_above or each.text[:1] not in ("", " ", "\t")
        if is_above and (_is_exception(each.text) or passed > EXCEPTION_ABOVE_LINES):
            return None if _is_exception(each.text) else tuple(reversed(frames))
        frame = None if is_above else FRAME.match(each.text)
        if frame is not None:
            frames.append(TracebackFrame(frame["file"], int(frame["line"]), (frame["function"] or "").strip()))
        if passed == FRAMES_ABOVE_LINES and not is_above:
            return None
    return tuple(reversed(frames))
