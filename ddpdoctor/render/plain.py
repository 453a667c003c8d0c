"""Untrusted text (logs, variables, file names), made safe to print."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """`text` with control, format and surrogate characters as visible escapes: a log cannot steer the terminal.

    Newlines and tabs are kept, and so are zero-width joiners, which are part of words.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character in "\n\t\u200c\u200d" or unicodedata.category(character) not in _HARMFUL:
        return character
    return character.encode("unicode_escape").decode("ascii")
