"""The texts of which every match of a regular expression holds one: cheap to look for before the expression is tried."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
    import re._constants as constants
    import re._parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

__all__ = ["literals_of"]

MOST_CHOICES = 8


@functools.cache
def literals_of(pattern: str) -> tuple[str, ...]:
    """Texts, one of which is in whatever `pattern` matches: the longest that it demands, one for each alternative.

    Raises:
        ValueError: it demands none.
    """
    found = max(_demands(parser.parse(pattern)), key=_worth, default=())
    if not _worth(found):
        raise ValueError(f"{pattern!r} has an alternative without any literal text")
    return found


def _worth(literals: tuple[str, ...]) -> int:
    return min((len(literal) for literal in literals), default=0)


def _demands(parsed: Any) -> Iterator[tuple[str, ...]]:
    """Everything that each match goes through, in order: choices of adjacent texts."""
    runs = [""]
    for what, value in parsed:
        if what is constants.LITERAL:
            runs = [run + chr(value) for run in runs]
            continue
        choices = _choices(what, value)
        if choices and len(runs) * len(choices) <= MOST_CHOICES:
            runs = [run + choice for run in runs for choice in choices]
            continue
        yield tuple(runs)
        runs = [""]
        if what is constants.SUBPATTERN:
            yield from _demands(value[3])
        elif what is constants.MAX_REPEAT and value[0] > 0:
            yield from _demands(value[2])
        elif what is constants.BRANCH:
            found = [max(_demands(choice), key=_worth, default=()) for choice in value[1]]
            yield tuple(literal for choice in found for literal in choice) if all(map(_worth, found)) else ()
    yield tuple(runs)


def _choices(what: Any, value: Any) -> list[str]:
    """The texts of a group or of a choice that consists of literals alone, [] for anything else."""
    if what is constants.SUBPATTERN and len(value[3]) == 1:
        return _choices(*value[3][0])
    if what is constants.SUBPATTERN:
        return _choices(constants.BRANCH, (None, [value[3]]))
    if what is not constants.BRANCH:
        return []
    if any(part is not constants.LITERAL for choice in value[1] for part, _ in choice):
        return []
    return ["".join(chr(code) for _, code in choice) for choice in value[1]]
