"""Simple commands of shell text and their words, read from the syntax tree of tree-sitter-bash; nothing is run.

Expansions become UNKNOWN unless the variable is in `known`. Text that bash would refuse has errors in its tree: only its
complete commands are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.launch.shell.text import Offsets, parse
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["SEPARATOR", "Inner", "Simple", "inner_text", "simple_commands", "words_of_command"]

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\}|[@*#?$!0-9-])", re.ASCII)
_LIST = re.compile(r"\$@|\$\{(?:@|\w+\[@\])[^}]*\}")
"""The expansions that are many words inside double quotes as well."""
_ARRAY = re.compile(r"\$\{(\w+)\[@\]\}")
SEPARATOR = "\x1f"
"""Follows each word of an array in `known`, whose key is `NAME[@]`."""
_BLANKS = re.compile(r"[ \t\n]+")

_OPERATORS = (";", ";;", "&&", "||", "|", "|&", "&", "\n")
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
_REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")
_OF_WORDS = ("command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments", "array")
"""Statements that are simple commands."""
_HEADS = (
    "for_statement",
    "case_statement",
    "case_item",
    "c_style_for_statement",
    "function_definition",
    "test_command",
)
"""Statements whose own words are not a command."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command. `operator` is what ends it: `;`, `&&`, `|`, `&`, a line end, or nothing."""

    words: tuple[Word, ...]
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Inner:
    """Shell text inside a word: its characters, the word's spelling and place, and the place of each character in it.

    `context` are the quotes around it, outermost first.
    """

    text: str
    raw: str
    start: int
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    context: str


def simple_commands(
    text: str, known: Mapping[str, str] | None = None, *, inside: Inner | None = None
) -> tuple[Simple, ...]:
    """The simple commands of `text`.

    Args:
        known: variables whose values are certain.
        inside: where `text` is in the line's source, if it is a word of it.
    """
    commands = _commands(text)
    evaluate = _Evaluator(text, commands.offsets, known or {}, inside)
    found = (Simple(tuple(evaluate.words(each)), operator) for each, operator in commands.found)
    return tuple(each for each in found if each.words)


def words_of_command(text: str, offsets: Offsets, node: Node, known: Mapping[str, str]) -> tuple[Word, ...]:
    """The words of one node of a larger text, with their places in it; those of several commands in sequence."""
    commands = _Commands(text, offsets)
    commands.walk(node)
    commands.end()
    evaluate = _Evaluator(text, offsets, known, None)
    return tuple(word for each, _ in commands.found for word in evaluate.words(each))


def inner_text(word: Word, option: str = "", known: Mapping[str, str] | None = None) -> Inner:
    """The text of a quoted word as shell text (`bash -c '…'`), without an option before it (`--wrap=…`)."""
    prefix = ": "  # so that the word is an argument, whatever it looks like
    text = prefix + word.raw
    commands = _commands(text)
    spans = [span for each, _ in commands.found[:1] for span in each[1:]]
    piece = _Evaluator(text, commands.offsets, known or {}, None).piece(spans[:1])
    first = len(prefix) + len(option)
    kept = [i for i, offset in enumerate(piece.offsets) if offset >= first]
    kind = word.raw[len(option) : len(option) + 1]
    kind = kind if kind in ("'", '"') else ""
    return Inner(
        "".join(piece.chars[i] for i in kept),
        word.raw,
        word.start,
        tuple(piece.offsets[i] - len(prefix) for i in kept),
        tuple(piece.ends[i] - len(prefix) for i in kept),
        word.context + kind,
    )


def _commands(text: str) -> _Commands:
    """The commands of a whole text. An open quote ends with the text."""
    source = text.replace(UNKNOWN, "_")  # the grammar does not accept NUL: a letter replaces it
    tree = parse(source)
    if tree.has_error:
        closed = (parse(source + quote) for quote in "'\"`")
        tree = next((each for each in closed if not each.has_error), tree)
    commands = _Commands(text, Offsets(source))
    commands.walk(tree)
    commands.end()
    return commands


@dataclass(slots=True)
class _Span:
    """The place of a word, and the nodes that make it."""

    start: int
    end: int
    nodes: list[Node]


class _Commands:
    """One walk over a tree: the spans of the words of each simple command, and the operator that ends it."""

    def __init__(self, text: str, offsets: Offsets) -> None:
        self.text = text
        self.offsets = offsets
        self.found: list[tuple[list[_Span], str]] = []
        self.current: list[_Span] = []

    def end(self, operator: str = "") -> None:
        if self.current:
            self.found.append((self.current, operator))
            self.current = []
        elif operator and self.found and not self.found[-1][1]:
            self.found[-1] = (self.found[-1][0], operator)

    def walk(self, node: Node) -> None:
        """Go through statements; what follows a command in its redirections belongs to it."""
        if node.type in _OF_WORDS:
            self.end()
            self.command(node)
        elif node.type == "redirected_statement":
            for child in node.children:
                if child.type in _REDIRECTS:
                    self.redirect(child)
                else:
                    self.walk(child)
        elif node.type in _OPERATORS:
            self.end(node.type)
        elif node.type == "ERROR":
            self.command(node)
        elif node.type != "comment":
            for child in node.children:
                if node.type not in _HEADS or child.is_named:
                    self.walk(child)
            if node.children:
                self.end()

    def command(self, node: Node) -> None:
        if node.type == "variable_assignment":
            self.word(node)
            return
        if node.type == "array":
            for child in node.named_children:
                if child.type != "comment":
                    self.word(child)
            return
        for child in node.children:
            if child.type in _REDIRECTS:
                self.redirect(child)
            elif child.type in _OPERATORS:
                self.end(child.type)
            elif child.type in ("subshell", "comment", *_OF_WORDS[:3]) or (child.child_count and not child.is_named):
                self.walk(child)
            elif node.type == "ERROR" and child.type in ("(", ")"):
                self.end()
            else:
                self.word(child)

    def redirect(self, node: Node) -> None:
        """The first word is the target; other words belong to the command, and a pipe may follow a heredoc."""
        targets = 0
        for child in node.children:
            if node.type == "heredoc_redirect":
                if child.type in ("pipeline", "list", *_OPERATORS):
                    self.walk(child)
            elif child.is_named and child.type != "file_descriptor":
                targets += 1
                if targets > 1:
                    self.word(child)

    def word(self, node: Node) -> None:
        start, end = self.offsets.of(node)
        end = min(end, len(self.text))
        last = self.current[-1] if self.current else None
        if last is not None and last.end == start:
            last.end = end
            last.nodes.append(node)
        elif end > start:
            self.current.append(_Span(start, end, [node]))


@dataclass(slots=True)
class _Piece:
    """A word being read: its characters, where each begins and ends in the source, and whether it is quoted or split."""

    chars: list[str]
    offsets: list[int]
    ends: list[int]
    quoted: bool = False
    loose: bool = False
    many: bool = False


class _Evaluator:
    """The words of a text with its quotes removed and its known variables expanded."""

    def __init__(self, text: str, offsets: Offsets, known: Mapping[str, str], inside: Inner | None) -> None:
        self.text = text
        self.offsets = offsets
        self.known = known
        self.inside = inside

    def words(self, spans: Sequence[_Span]) -> list[Word]:
        return [word for span in spans for word in self._words(self.piece([span]), span.start, self._end(span))]

    def _end(self, span: _Span) -> int:
        """A word ends before the list that is assigned to an array."""
        node = span.nodes[-1]
        array = (
            next((c for c in node.children if c.type == "array"), None) if node.type == "variable_assignment" else None
        )
        return span.end if array is None else self.offsets.of(array)[0]

    def piece(self, spans: Sequence[_Span]) -> _Piece:
        piece = _Piece([], [], [])
        for span in spans:
            self._nodes(piece, span.nodes, span.start, span.end, quoted=False)
        return piece

    def _nodes(self, piece: _Piece, nodes: Sequence[Node], start: int, end: int, *, quoted: bool) -> None:
        """The characters of a span: those of its nodes, and those between them, which are literal."""
        at = start
        for node in nodes:
            first, last = self.offsets.of(node)
            while quoted and first < last and self.text[first] not in "$`":
                first += 1  # in a string the grammar counts blanks before an expansion as its own
            self._literal(piece, at, first, quoted=quoted)
            self._node(piece, node, first, last, quoted=quoted)
            at = max(at, last)
        self._literal(piece, at, end, quoted=quoted)

    def _node(self, piece: _Piece, node: Node, start: int, end: int, *, quoted: bool) -> None:
        if node.type in ("raw_string", "ansi_c_string"):
            piece.quoted = True
            self._add(piece, self.text.find("'", start) + 1, end - 1)
        elif node.type in ("string", "translated_string") and not quoted:
            piece.quoted = True
            inner = node if node.type == "string" else next((c for c in node.children if c.type == "string"), node)
            first = self.text.find('"', start) + 1
            self._nodes(piece, [c for c in inner.children if c.type in _EXPANSIONS], first, end - 1, quoted=True)
        elif node.type in _EXPANSIONS:
            self._expand(piece, start, end, quoted=quoted)
        elif node.type == "array":
            return
        elif node.children:
            self._nodes(piece, node.children, start, end, quoted=quoted)
        else:
            self._literal(piece, start, end, quoted=quoted)

    def _literal(self, piece: _Piece, start: int, end: int, *, quoted: bool) -> None:
        """Characters without expansions; inside double quotes a backslash escapes only a few of them."""
        i = start
        while i < end:
            if self.text[i] == "\\" and (not quoted or self.text[i + 1 : i + 2] in tuple('\\"$`\n')):
                piece.quoted = True
                if self.text[i + 1 : i + 2] != "\n":
                    self._add(piece, i + 1, min(i + 2, end))
                    if i + 2 <= end and piece.offsets and piece.offsets[-1] == i + 1:
                        piece.offsets[-1] = i  # the backslash belongs to the character
                i += 2
            else:
                stop = self.text.find("\\", i + 1, end)
                stop = end if stop < 0 else stop
                self._add(piece, i, stop)
                i = stop

    def _add(self, piece: _Piece, start: int, end: int) -> None:
        end = min(end, len(self.text))  # the grammar was given a closing quote that the text lacks
        piece.chars += self.text[start:end]
        piece.offsets += range(start, end)
        piece.ends += range(start + 1, end + 1)

    def _expand(self, piece: _Piece, start: int, end: int, *, quoted: bool) -> None:
        variable = _VARIABLE.match(self.text, start, end)
        if variable and variable.end() < end:  # `$10` is `$1` and a 0
            self._literal(piece, variable.end(), end, quoted=quoted)
        name = (variable[1] or variable[2] or "") if variable else ""
        piece.many = piece.many or bool(_LIST.fullmatch(self.text, start, end))
        whole = _ARRAY.fullmatch(self.text, start, end)
        value = self.known.get(f"{whole[1]}[@]" if whole else name, UNKNOWN)
        piece.chars += value
        piece.offsets += [start] * len(value)
        piece.ends += [end] * len(value)
        piece.loose = piece.loose or not quoted

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
        """The variable of the word gave no other word."""
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
