"""Finds tokens with the expressions of a public scanner; each is compiled when a text first has one of its keywords."""

from __future__ import annotations

import functools
import re

from ddpdoctor.privacy.marks import mark
from ddpdoctor.privacy.scanner_rules import END, RULES, SIGN

__all__ = ["without_tokens"]

SHORTEST = 12
"""No token is shorter."""


def without_tokens(text: str) -> str:
    """The text with all tokens marked."""
    if len(text) < SHORTEST:
        return text
    for number in sorted(_candidates(text.lower())):
        text = _rule(number).sub(_marked, text)
    return text


def _candidates(lower: str) -> set[int]:
    """The rules of which a keyword is in the text."""
    starts = {lower[at : at + START] for at in range(len(lower) - START + 1)}
    return {number for start in starts & _BY_START.keys() for word, number in _BY_START[start] if word in lower}


START = 2
"""No keyword is shorter."""
_BY_START: dict[str, list[tuple[str, int]]] = {}
for _number, _keywords in enumerate(rule[0] for rule in RULES):
    for _word in _keywords:
        _BY_START.setdefault(_word[:START], []).append((_word, _number))


@functools.cache
def _rule(number: int) -> re.Pattern[str]:
    _keys, expression, is_caseless = RULES[number]
    return re.compile(expression.replace("%S", SIGN).replace("%E", END), re.IGNORECASE if is_caseless else 0)


def _marked(match: re.Match[str]) -> str:
    group = next((at for at, text in enumerate(match.groups(), 1) if text), 0)
    start, end = match.span(group)
    return match.string[match.start() : start] + mark(match[group]) + match.string[end : match.end()]
