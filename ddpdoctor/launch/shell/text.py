"""The text of a script, its syntax tree and the places of both."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["LONG_LINE", "Offsets", "ShellSource", "Text", "below", "end_of_commands", "parse"]

LONGEST_EXPANSION = 2_000
"""Characters of one expansion with several parentheses."""
LONG_LINE = re.compile(r"[^\n]{10000,}")
"""A line that no person writes."""
DEEPEST_EXPANSION = 30
"""Nested parentheses in it."""


@dataclass(frozen=True, slots=True)
class ShellSource:
    """Shell text and its place: `file`, `place` of an index in it, and the environment at its start.

    `folders` are where a relative script may be, the likeliest first; empty: scripts are not looked for. `files`
    answers questions about files in them.
    """

    text: str
    file: str
    environ: Mapping[str, str]
    version: Version
    folders: tuple[str, ...] = ()
    place: Callable[[int], Mark] | None = None
    is_piece: bool = False
    files: FileLookup = NO_FILES


class Offsets:
    """Places of the nodes of a tree in its text: the tree counts bytes, the text characters."""

    def __init__(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._starts: list[int] | None = None
        if len(data) != len(text):
            starts = [at for at, byte in enumerate(data) if byte & 0xC0 != 0x80]
            self._starts = starts

    def at(self, byte: int) -> int:
        """The index in the text of a byte offset."""
        return byte if self._starts is None else bisect_left(self._starts, byte)

    def of(self, node: Node) -> tuple[int, int]:
        """The span of a node in the text."""
        return self.at(node.start_byte), self.at(node.end_byte)


@functools.cache
def _parser() -> Parser:
    """The grammar is loaded only if shell text is read."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


@functools.lru_cache(maxsize=64)
def parse(text: str) -> Node:
    """The syntax tree of a shell text; the tasks of one step all run the same."""
    return _parser().parse(_readable(text).encode("utf-8", "replace")).root_node


def end_of_commands(text: str, at: int) -> int | None:
    """Of `$((` at this index: where `)` ends it if it is `$( (…) … )`, commands in a subshell; None if it is arithmetic."""
    depth, second = 0, -1
    for index in range(at + 1, min(len(text), at + LONGEST_EXPANSION)):
        if text[index] == "(":
            depth += 1
        elif text[index] == ")":
            depth -= 1
            second = index if depth == 1 else second
        if depth == 0:
            return None if index == second + 1 else index
        if depth > DEEPEST_EXPANSION:
            return None
    return None


def _readable(text: str) -> str:
    """The text, of the same length, with letters in place of what the grammar cannot read.

    That is `$((…) && …)`, which it takes for arithmetic, and lines of a length for which it needs minutes.
    """
    text = LONG_LINE.sub(lambda line: "_" * len(line[0]), text)
    pieces, done = [], 0
    at = text.find("$((")
    while at >= 0:
        end = end_of_commands(text, at)
        if end is not None:
            pieces += [text[done : at + 2], "_" * (end - at - 2)]
            done = end
        at = text.find("$((", at + 3 if end is None else end)
    return "".join([*pieces, text[done:]]) if pieces else text


def below(node: Node) -> Iterator[Node]:
    """The node and all its descendants, without recursion."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each.named_children


class Text:
    """A source as characters and bytes: the text of a node of its tree, and its place in the file."""

    def __init__(self, source: ShellSource) -> None:
        self.source = source
        self.text = source.text.replace(UNKNOWN, " ").encode("utf-8", "replace").decode("utf-8")
        self.offsets = Offsets(self.text)
        self.rows = [0, *(m.end() for m in re.finditer("\n", self.text))]

    def at(self, byte: int) -> int:
        """The index in the text of a byte offset."""
        return self.offsets.at(byte)

    def span(self, node: Node) -> tuple[int, int]:
        return self.offsets.of(node)

    def read(self, node: Node) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def mark(self, at: int) -> Mark:
        """The place of an index in the file."""
        if self.source.place is not None:
            return self.source.place(at)
        row = bisect_right(self.rows, at) - 1
        return Mark(row + 1, at - self.rows[row] + 1)
