"""The longest text that every match of a regular expression holds: cheap to look for before the expression is tried."""

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

__all__ = ["literal_of"]


@functools.cache
def literal_of(pattern: str) -> str:
    """The longest literal that `pattern` demands, "" when it demands none."""
    return max(_runs(parser.parse(pattern)), key=len, default="")


def _runs(parsed: Any) -> Iterator[str]:
    """Every run of literal characters that each match goes through, in order."""
    run: list[str] = []
    for what, value in parsed:
        if what is constants.LITERAL:
            run.append(chr(value))
            continue
        yield "".join(run)
        run = []
        if what is constants.SUBPATTERN:
            yield from _runs(value[3])
        elif what is constants.MAX_REPEAT and value[0] > 0:
            yield from _runs(value[2])
    yield "".join(run)
