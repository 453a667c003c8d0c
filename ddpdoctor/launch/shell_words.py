"""Shell text cut into simple commands and their words, as a POSIX shell would, without running anything.

Enough for one launch line: quotes, backslashes, line continuations, comments, operators, redirections. Expansions become
UNKNOWN unless the variable is in `known`. Whole scripts are read with a real shell grammar elsewhere; both give Words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpdoctor.facts.launch.words import UNKNOWN, Word

__all__ = ["SEPARATOR", "Inner", "Simple", "inner_text", "split"]

_OPERATOR = re.compile(r"&&|\|\||;;|[;&|\n()]")
_REDIRECT = re.compile(r"\d*(?:&>>?|<<<|<<-?|>>|>&|<&|<>|>\||[<>])")
_RESERVED = ("if", "then", "elif", "else", "while", "until", "do", "!", "{")
"""Words of the shell that a command follows."""
_PLAIN = re.compile(r"""[^\s;&|()<>'"\\$`]+""")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\}|[@*#?$!0-9-])", re.ASCII)
_LIST = re.compile(r"\$@|\$\{(?:@|\w+\[@\])[^}]*\}")
"""The expansions that are many words inside double quotes as well."""
_ARRAY = re.compile(r"\$\{(\w+)\[@\]\}")
SEPARATOR = "\x1f"
"""Stands after each word of an array in `known`, whose key is `NAME[@]`."""
_BLANKS = re.compile(r"[ \t\n]+")


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command. `operator` is what ends it: `;`, `&&`, `|`, `&`, a line end, or nothing."""

    words: tuple[Word, ...]
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Inner:
    """Shell text inside a word: its characters, the word's spelling and place, and where each character stands in it.

    `context` are the quotes around it, outermost first.
    """

    text: str
    raw: str
    start: int
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    context: str


@dataclass(slots=True)
class _Piece:
    """A word being read: its characters, where each begins and ends in the source, what is special."""

    chars: list[str]
    offsets: list[int]
    ends: list[int]
    quoted: bool = False
    expanded: bool = False
    loose: bool = False
    many: bool = False


def split(text: str, known: Mapping[str, str] | None = None, *, inside: Inner | None = None) -> tuple[Simple, ...]:
    """The simple commands of `text`.

    Args:
        known: variables whose values are certain.
        inside: where `text` stands in the line's source, when it is a word of it.
    """
    return _Splitter(text, known or {}, inside).split()


def inner_text(word: Word, option: str = "", known: Mapping[str, str] | None = None) -> Inner:
    """The text of a quoted word as shell text of its own (`bash -c '…'`), behind an option that it begins with (`--wrap=…`)."""
    piece, _ = _Splitter(word.raw, known or {}, None).word(len(option))
    kind = word.raw[len(option) : len(option) + 1]
    kind = kind if kind in ("'", '"') else ""
    return Inner(
        "".join(piece.chars),
        word.raw,
        word.start,
        tuple(piece.offsets),
        tuple(piece.ends),
        word.context + kind,
    )


class _Splitter:
    def __init__(self, text: str, known: Mapping[str, str], inside: Inner | None) -> None:
        self.text = text
        self.known = known
        self.inside = inside

    def split(self) -> tuple[Simple, ...]:
        commands: list[Simple] = []
        words: list[Word] = []
        i, skip = 0, False
        while i < len(self.text):
            char = self.text[i]
            if char in " \t\r" or self.text.startswith("\\\n", i):
                i += 2 if char == "\\" else 1
            elif char == "#":
                end = self.text.find("\n", i)
                i = len(self.text) if end < 0 else end
            elif redirect := _REDIRECT.match(self.text, i):
                i, skip = redirect.end(), True
            elif operator := _OPERATOR.match(self.text, i):
                commands.append(Simple(tuple(words), operator[0]))
                words, i, skip = [], operator.end(), False
            else:
                piece, end = self.word(i)
                if not skip and (words or self.text[i:end] not in _RESERVED):
                    words += self._words(piece, i, end)
                i, skip = end, False
        commands.append(Simple(tuple(words)))
        return tuple(c for c in commands if c.words)

    def word(self, start: int) -> tuple[_Piece, int]:
        """The word that begins at `start`, and the index after it."""
        piece = _Piece([], [], [])
        i = start
        while i < len(self.text):
            char = self.text[i]
            if char in " \t\r\n;&|()<>" and not (char in "<>" and i == start):
                break
            if char == "'":
                end = self.text.find("'", i + 1)
                end = len(self.text) if end < 0 else end
                self._add(piece, range(i + 1, end))
                piece.quoted, i = True, end + 1
            elif char == '"':
                i = self._double(piece, i + 1)
            elif char == "\\":
                if not self.text.startswith("\\\n", i):
                    self._add(piece, range(i + 1, min(i + 2, len(self.text))))
                piece.quoted, i = True, i + 2
            elif char in "$`":
                i = self._expand(piece, i, quoted=False)
            else:
                run = _PLAIN.match(self.text, i)
                end = i + 1 if run is None else run.end()
                self._add(piece, range(i, end))
                i = end
        return piece, min(i, len(self.text))

    def _add(self, piece: _Piece, span: range) -> None:
        piece.chars += self.text[span.start : span.stop]
        piece.offsets += span
        piece.ends += range(span.start + 1, span.stop + 1)

    def _double(self, piece: _Piece, i: int) -> int:
        piece.quoted = True
        while i < len(self.text) and self.text[i] != '"':
            if self.text[i] == "\\" and self.text[i + 1 : i + 2] in tuple('\\"$`\n'):
                if self.text[i + 1] != "\n":
                    self._add(piece, range(i + 1, i + 2))
                i += 2
            elif self.text[i] in "$`":
                i = self._expand(piece, i, quoted=True)
            else:
                self._add(piece, range(i, i + 1))
                i += 1
        return i + 1

    def _expand(self, piece: _Piece, i: int, *, quoted: bool) -> int:
        variable = _VARIABLE.match(self.text, i)
        if variable:
            name, end = variable[1] or variable[2] or "", variable.end()
        elif self.text.startswith(("$(", "${"), i):
            name, end = "", self._closing(i + 1)
        elif self.text[i] == "`":
            close = self.text.find("`", i + 1)
            name, end = "", len(self.text) if close < 0 else close + 1
        else:  # a lone dollar, or $'…' and $"…": the dollar goes
            if self.text[i + 1 : i + 2] not in ("'", '"'):
                self._add(piece, range(i, i + 1))
            return i + 1
        piece.many = piece.many or bool(_LIST.fullmatch(self.text, i, end))
        whole = _ARRAY.fullmatch(self.text, i, end)
        value = self.known.get(f"{whole[1]}[@]" if whole else name, UNKNOWN)
        piece.chars += value
        piece.offsets += [i] * len(value)
        piece.ends += [end] * len(value)
        piece.expanded = True
        piece.loose = piece.loose or not quoted
        return end

    def _closing(self, i: int) -> int:
        """The index after the bracket that closes the one at `i`."""
        opening = self.text[i]
        closing = {"(": ")", "{": "}"}[opening]
        depth = 0
        while i < len(self.text):
            if self.text[i] == "\\":
                i += 1
            elif self.text[i] == "'":
                end = self.text.find("'", i + 1)
                i = len(self.text) if end < 0 else end
            elif self.text[i] == opening:
                depth += 1
            elif self.text[i] == closing:
                depth -= 1
                if depth == 0:
                    return i + 1
            i += 1
        return len(self.text)

    def _words(self, piece: _Piece, start: int, end: int) -> list[Word]:
        text = "".join(piece.chars)
        raw, first, last, context = self._place(start, end)
        loose = piece.loose and not piece.quoted
        if piece.many and SEPARATOR in text:  # a known array: its words, whatever blanks are in them
            parts = [p for p in text.split(SEPARATOR) if p]
            return [Word(p, raw, first, last, context, splits=p.strip(UNKNOWN) == "", is_literal=False) for p in parts]
        parts = _BLANKS.split(text.strip(" \t\n")) if loose else [text]
        if loose and (UNKNOWN not in text or len(parts) > 1):  # outside quotes a value is split into words
            return [
                Word(p, raw, first, last, context, splits=p.strip(UNKNOWN) == "", is_literal=len(parts) == 1)
                for p in parts
                if p
            ]
        loose = loose or piece.many or (self.inside is not None and not piece.quoted)
        splits = loose and text.strip(UNKNOWN) == ""
        return [Word(text, raw, first, last, context, splits=splits, is_literal=self._is_alone(start, end))]

    def _is_alone(self, start: int, end: int) -> bool:
        """Nothing else came out of a variable that the word came out of."""
        if self.inside is None:
            return True
        at = self.inside.offsets
        return (start == 0 or at[start - 1] != at[start]) and (end == len(at) or at[end - 1] != at[end])

    def _place(self, start: int, end: int) -> tuple[str, int, int, str]:
        """Spelling, span and quotes of a word in the line's source."""
        inside = self.inside
        if inside is None:
            return self.text[start:end], start, end, ""
        first, last = inside.offsets[start], inside.ends[end - 1]
        return inside.raw[first:last], inside.start + first, inside.start + last, inside.context
