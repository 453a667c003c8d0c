"""Which lines of a log match a regular expression: literals first, remembered per log and expression."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.facts.nccl_line import without_function
from ddpdoctor.logs.required_literals import literals_of

__all__ = ["compiled", "matching_lines"]


def matching_lines(log: Log, signatures: Iterable[str]) -> list[LogLine]:
    """The lines of the log that one of the signatures matches, in order."""
    texts = _texts(log)
    places = {place for pattern in signatures for place in texts.places(pattern)}
    return [log.lines[place] for place in sorted(places)]


class _Texts:
    """The texts of a log's lines; several causes and their rivals ask for the same expression."""

    def __init__(self, log: Log) -> None:
        self._texts = [without_function(line.text) for line in log.lines]
        self._whole = "\n".join(self._texts)
        self._known: dict[str, tuple[int, ...]] = {}

    def places(self, pattern: str) -> tuple[int, ...]:
        """The indices of the lines that the expression matches."""
        known = self._known.get(pattern)
        if known is None:
            known = self._known[pattern] = self._searched(pattern)
        return known

    def _searched(self, pattern: str) -> tuple[int, ...]:
        literals = [literal for literal in literals_of(pattern) if literal in self._whole]
        near = {place for literal in literals for place, text in enumerate(self._texts) if literal in text}
        return tuple(place for place in sorted(near) if compiled(pattern).search(self._texts[place]))


@functools.lru_cache(4)
def _texts(log: Log) -> _Texts:
    return _Texts(log)


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression, compiled when its literal is first seen."""
    return re.compile(pattern)
