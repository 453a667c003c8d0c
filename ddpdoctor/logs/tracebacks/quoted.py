"""Exceptions that somebody quotes: in a sentence, a title, a block of Markdown, or an answer, without a traceback around them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.log import Traceback
from ddpdoctor.late_pattern import pattern
from ddpdoctor.logs.line_meaning import is_work_of_job
from ddpdoctor.logs.line_prefix import split_prefix, without_control_codes
from ddpdoctor.logs.tracebacks.reader import HEAD, IGNORED

__all__ = ["MOST_QUOTED_BYTES", "quoted_exceptions", "quoted_in"]

MOST_QUOTED_BYTES = 32 << 10
"""A text of at most this size and of QUOTED_LINES is read as a report: in a longer one, programs wrote the lines."""

_NAMED = pattern(
    r"(?<![A-Za-z0-9_.])(?P<name>(?:[A-Za-z_][A-Za-z0-9_]*\.)*(?:[A-Z][A-Za-z0-9_]{1,60}(?:Error|Exception|Interrupt)"
    r"|gaierror|herror|Arrow[A-Z][a-z]{3,20}|BackendCompilerFailed|OutOfResources|HTTPStatusError|RayTaskError\(\w{3,60}\)))"
    r"(?:: ?(?P<message>[^\n]{1,2000})|\((?P<quote>['\"])(?P<said>[^\n]{1,1000}?)(?P=quote)\))"
)
_CLOSING = {'"': '"', "'": "'", "`": "`", "“": "”", "*": "*", "_": "_", "(": ")", "「": "」"}
"""What stands before a quoted exception, and what closes the quotation."""
_OTHERS = pattern(r" (?:srun: error|slurmstepd|\[ERROR\]|WARNING|\[WARNING\]|ERROR) ?:?|[*_`]{1,3}\s*$|[。？，]")
"""What follows the message when lines were pasted together."""
_CODE = pattern(
    r"^\s*(?:raise|except|return|if|assert|#!|//)\b|->|\bself\.assert|pytest\.raises|^\s*(?:[\[{,]+\s*)?\"\w+\": ?\""
)
_HARMLESS = pattern(
    r"\b(?:ignor(?:ed|ing)|skipp(?:ed|ing)|retry(?:ing)?|try(?:ing)? again|fall(?:ing|s)? ?back|continu(?:e|ing)|caught|handled"
    r"|recovered|fix(?:ed|es)|solved|resolved|no longer|warn(?:ing)?|info|debug)\b",
    re.IGNORECASE,
)
"""Words around an exception that did not end a process, or does not any more."""
_ENDED = pattern(r"srun: error: |\bexit(?:ed|s)? with (?:exit )?code [1-9]")
"""What a launcher says of the process that raised it, pasted into the same line."""
_METRIC = pattern(r"[-+]?\d*\.\d+")


def quoted_exceptions(data: bytes) -> Iterator[Traceback]:
    """The exceptions that the lines of a short text quote, the first of each message, in order."""
    if HEAD in (text := data.decode("utf-8", "replace")) or IGNORED in text:
        return
    known: set[str] = set()
    lines = text.splitlines()
    last_step = max((number for number, line in enumerate(lines, 1) if is_work_of_job(line)), default=0)
    for number, raw in enumerate(lines, 1):
        own = split_prefix(without_control_codes(raw[:2000]))
        found = quoted_in(own.text)
        if found is not None and found[1] not in known:
            known.add(found[1])
            is_title = own.text.lstrip().startswith("#") or (number == 1 and _ENDED.search(own.text) is not None)
            if number < last_step and not is_title:
                continue  # the job worked on after it
            yield Traceback(0, number, *found, (), own.who, own.time, begin=number, is_title=is_title)


def quoted_in(text: str) -> tuple[str, str] | None:
    """The class and the message of the exception that a line quotes; None if it shows none that ended a process."""
    found = _NAMED.search(text)
    if found is None or _CODE.search(text[: found.start()]):
        return None
    before, message = text[: found.start()], _message(text, found)
    if not message or _METRIC.match(message) or _HARMLESS.search(before) or _HARMLESS.search(message):
        return None
    return found["name"], message


def _message(text: str, found: re.Match[str]) -> str:
    """The message, up to the end of the quotation in which it stands."""
    if found["said"] is not None:
        return found["said"].strip()
    message = found["message"].strip()
    opening = text[found.start() - 1 : found.start()]
    closing = _CLOSING.get(opening)
    if closing is not None and closing in message:
        message = message[: message.rindex(closing)] if closing in "*_`" else message.partition(closing)[0]
    return _OTHERS.split(message, maxsplit=1)[0].strip(" *_`\t")[:1000]
