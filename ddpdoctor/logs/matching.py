"""Which lines of a log match a regular expression: literals first, remembered per log and expression."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.required_literals import literals_of

__all__ = ["compiled", "matching_lines"]


def matching_lines(log: Log, signatures: Iterable[str]) -> list[LogLine]:
    """The lines of the log that one of the signatures matches, in order."""
    places = {place for pattern in signatures for place in _places(log, pattern)}
    return [log.lines[place] for place in sorted(places)]


@functools.lru_cache(2048)
def _places(log: Log, pattern: str) -> tuple[int, ...]:
    """The indices of the lines that the expression matches; several causes and their rivals ask for the same one."""
    texts, whole = _texts(log)
    literals = [literal for literal in literals_of(pattern) if literal in whole]
    near = {place for literal in literals for place, text in enumerate(texts) if literal in text}
    return tuple(place for place in sorted(near) if compiled(pattern).search(texts[place]))


@functools.lru_cache(4)
def _texts(log: Log) -> tuple[list[str], str]:
    texts = [line.text for line in log.lines]
    return texts, "\n".join(texts)


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression, compiled when its literal is first seen."""
    return re.compile(pattern)
