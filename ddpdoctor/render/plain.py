"""Untrusted text (logs, variables, file names), made safe to print."""

from __future__ import annotations

import unicodedata

__all__ = ["json_printable", "printable"]

_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """`text` with control, format and surrogate characters as visible escapes: a log cannot steer the terminal.

    Newlines and tabs are kept, and so are zero-width joiners, which are part of words.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) for c in text)


def json_printable(text: str) -> str:
    """JSON text in which control and format characters are escaped as JSON allows: a terminal that shows it is not steered."""
    if text.isascii():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in _HARMFUL else _escape(c) for c in text)


def _escape(character: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(character.encode("utf-16-le", "surrogatepass")).cast("H"))


def _visible(character: str) -> str:
    if character in "\n\t\u200c\u200d" or unicodedata.category(character) not in _HARMFUL:
        return character
    return character.encode("unicode_escape").decode("ascii")
