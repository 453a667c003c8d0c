"""Words of a launch line, the place of each in the text, and edits of that text.

A word has two spellings: `text`, which the program gets, and its span in the source, which the user wrote. A corrected
line is the source with a few spans replaced, so everything else keeps the user's spelling, order and quotes.

What a shell expands at run time (`$NGPU`, `$(hostname)`) is not known here. Each such piece is the one character UNKNOWN
in `text`: a NUL, which no real argument can contain, so `--nproc-per-node=\\0` is still that option with an unknown value.
`splits` is set if the unknown piece is outside quotes and is the whole word: it may then become no word, one, or several.
A rule judges only values for which `is_known` holds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from ddpdoctor.light_dataclass import dataclass

__all__ = ["UNKNOWN", "Mark", "SpanEdit", "Word", "apply", "escape", "is_known", "merged", "plain", "quote", "tidy"]

UNKNOWN = "\0"
"""The character in a word's text for a piece that only the shell will know."""

_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """One argument. `start` and `end` are its span in the line's source, in characters.

    `context` are the quotes around the span, outermost first: `'` for the words of `bash -c '…'`; text inserted next
    to such a word needs `escape(text, context)`. `is_literal` is False for a word from a variable: its span is the
    variable's, which may have given other words as well. `raw` is the spelling in the source.
    """

    text: str
    raw: str = ""
    start: int = 0
    end: int = 0
    context: str = ""
    splits: bool = False
    is_literal: bool = True

    @property
    def known(self) -> str | None:
        """The text, None if a piece of it is unknown."""
        return self.text if UNKNOWN not in self.text else None

    @property
    def assignment(self) -> tuple[str, str] | None:
        """Name and value of a `NAME=value` word, None for any other."""
        match = _ASSIGNMENT.fullmatch(self.text)
        return (match[1], match[2]) if match else None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, from 1; `at` is the matching index in the line's source."""

    line: int
    column: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class SpanEdit:
    """Replace the span `start` to `end` of the source by `text`. An empty span inserts."""

    start: int
    end: int
    text: str


def is_known(value: str | None) -> bool:
    """There is a value, and no piece of it is unknown."""
    return value is not None and UNKNOWN not in value


def plain(text: str, unknown: str = "…") -> str:
    """The text for users, with unknown pieces shown as `unknown`."""
    return text.replace(UNKNOWN, unknown)


def quote(text: str) -> str:
    """The word as a shell must read it to get `text`: bare if that is safe, else in single quotes."""
    if _SAFE.fullmatch(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def escape(text: str, context: str) -> str:
    """Shell text prepared for the quotes of `context`."""
    for kind in reversed(context):
        if kind == "'":
            text = text.replace("'", "'\\''")
        elif kind == '"':
            text = re.sub(r'([\\"$`])', r"\\\1", text)
    return text


def merged(edits: Iterable[SpanEdit]) -> tuple[SpanEdit, ...]:
    """The edits in their order in the source, each once; removals that overlap become one.

    Raises:
        ValueError: two edits overlap.
    """
    ordered: list[SpanEdit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        last = ordered[-1] if ordered else edit
        if edit.start < last.end and not (edit.text or last.text):  # two words and the blank between them are removed
            ordered[-1:] = [SpanEdit(last.start, max(last.end, edit.end), "")]
        else:
            ordered.append(edit)
    for before, after in itertools.pairwise(ordered):
        if after.start < before.end:
            raise ValueError(f"edits overlap at {after.start}")
    return tuple(ordered)


def apply(source: str, edits: Iterable[SpanEdit]) -> str:
    """The source with the edits applied, from its end to its beginning, so that spans stay valid.

    Raises:
        ValueError: two edits overlap.
    """
    for edit in reversed(merged(edits)):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def tidy(command: str) -> str:
    """A command to paste: without the blanks that removed words leave at the ends of its lines."""
    return re.sub(r"(?m)(?<![ \t])[ \t]+$", "", command).strip()
