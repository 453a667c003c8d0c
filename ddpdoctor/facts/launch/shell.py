"""Shell text cut into simple commands and their words, as a POSIX shell would, without running anything.

Enough for one launch line: quotes, backslashes, line continuations, comments, operators, redirections. Expansions become
UNKNOWN unless the variable is in `known`. Whole scripts are read with a real shell grammar elsewhere; both give Words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpdoctor.facts.launch.words import UNKNOWN, Word

__all__ = ["Simple", "inner_text", "split"]

_OPERATOR = re.compile(r"&&|\|\||;;|[;&|\n()]")
_REDIRECT = re.compile(r"\d*(?:&>>?|<<<|<<-?|>>|>&|<&|<>|>\||[<>])")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\}|[@*#?$!0-9-])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command. `operator` is what ends it: `;`, `&&`, `|`, `&`, a line end, or nothing."""

    words: tuple[Word, ...]
    operator: str = ""


@dataclass(slots=True)
class _Piece:
    """A word being read: its characters, the source index of each, and what is special about it."""

    chars: list[str]
    offsets: list[int]
    quoted: bool = False
    expanded: bool = False
    loose: bool = False


def split(
    text: str, known: Mapping[str, str] | None = None, *, offsets: tuple[int, ...] = (), context: str = ""
) -> tuple[Simple, ...]:
    """The simple commands of `text`.

    Args:
        known: variables whose values are certain.
        offsets: for each character of `text`, its index in the line's source; the identity when left out.
        context: the quotes that `text` stands in, outermost first.
    """
    return _Splitter(text, known or {}, offsets, context).split()


def inner_text(word: Word) -> tuple[str, tuple[int, ...]]:
    """The text of a word and, for each character, its index in the source that the word's span counts in."""
    piece, _ = _Splitter(word.raw, {}, (), "").word(0)
    return "".join(piece.chars), tuple(word.start + at for at in piece.offsets)


class _Splitter:
    def __init__(self, text: str, known: Mapping[str, str], offsets: tuple[int, ...], context: str) -> None:
        self.text = text
        self.known = known
        self.offsets = offsets
        self.context = context

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
                if not skip:
                    words += self._words(piece, i, end)
                i, skip = end, False
        commands.append(Simple(tuple(words)))
        return tuple(c for c in commands if c.words)

    def word(self, start: int) -> tuple[_Piece, int]:
        """The word that begins at `start`, and the index after it."""
        piece = _Piece([], [])
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
                self._add(piece, range(i, i + 1))
                i += 1
        return piece, min(i, len(self.text))

    def _add(self, piece: _Piece, span: range) -> None:
        piece.chars += self.text[span.start : span.stop]
        piece.offsets += span

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
        value = self.known.get(name, UNKNOWN)
        piece.chars += value
        piece.offsets += [i] * len(value)
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
        first, last = self._at(start), self._at(end - 1) + 1
        loose = piece.loose and not piece.quoted
        if loose and UNKNOWN not in text:  # a known variable outside quotes: its value is split into words
            parts = text.split()
            return [Word(p, self.text[start:end], first, last, self.context, is_literal=len(parts) == 1) for p in parts]
        return [
            Word(
                text,
                self.text[start:end],
                first,
                last,
                self.context,
                splits=loose and text.strip(UNKNOWN) == "",
                is_literal=True,
            )
        ]

    def _at(self, i: int) -> int:
        return self.offsets[i] if self.offsets else i
