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
    """Everything that each match goes through, in order: a run of characters, or a choice of runs."""
    run: list[str] = []
    for what, value in parsed:
        if what is constants.LITERAL:
            run.append(chr(value))
            continue
        yield ("".join(run),)
        run = []
        if what is constants.SUBPATTERN:
            yield from _demands(value[3])
        elif what is constants.MAX_REPEAT and value[0] > 0:
            yield from _demands(value[2])
        elif what is constants.BRANCH:
            choices = [max(_demands(choice), key=_worth, default=()) for choice in value[1]]
            yield tuple(literal for choice in choices for literal in choice) if all(map(_worth, choices)) else ()
    yield ("".join(run),)
