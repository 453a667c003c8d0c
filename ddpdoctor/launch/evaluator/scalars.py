"""Scalars of a manifest as values, and what the kubelet makes of the references in them.

The kubelet replaces `$(NAME)` by the variable where the container has it, and `$$` by one dollar sign; everything else it
leaves to the program (kubernetes/third_party/forked/golang/expansion/expand.go; "Define a Command and Arguments for a
Container" in the documentation of Kubernetes).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import field

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.launch.evaluator.values import NOT_KNOWN, Origin, Value, text_value
from ddpdoctor.launch.manifests.yaml_nodes import At, text_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Expansion", "Manifest", "expanded"]

LONGEST = 1 << 16
"""Characters that references may make of one value: each may name a variable that is twice as long."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]{0,100})\))")


@dataclass(frozen=True, slots=True)
class Expansion:
    """A text with its references replaced. `pieces` are where each piece begins, in the result and in the source."""

    value: Value
    pieces: tuple[tuple[int, int, bool], ...] = ()
    """(index in the result, index in the source, whether the two advance together)."""

    def source_of(self, at: int) -> int:
        """The index in the source of an index of the result."""
        index = bisect_right(self.pieces, at, key=lambda piece: piece[0]) - 1
        if index < 0:
            return at
        begin, source, is_literal = self.pieces[index]
        return source + (at - begin if is_literal else 0)


def expanded(value: Value, variables: Mapping[str, Value]) -> Expansion:
    """What a container gets for a word or a variable that refers to variables of the container."""
    text, parts, sources = value.text, [], [value]
    pieces: list[tuple[int, int, bool]] = []
    length = at = 0
    for found in _REFERENCE.finditer(text):
        name = found[1]
        if name is not None and name not in variables:
            continue
        put = "$" if name is None else variables[name].text
        pieces += [(length, at, True), (length + found.start() - at, found.start(), False)]
        parts += [text[at : found.start()], put]
        length += found.start() - at + len(put)
        at = found.end()
        if name is not None:
            sources.append(variables[name])
        if length > LONGEST:
            return Expansion(NOT_KNOWN)
    if not pieces:
        return Expansion(value)
    pieces.append((length, at, True))
    return Expansion(text_value("".join((*parts, text[at:])), *sources), tuple(pieces))


@dataclass(slots=True)
class Manifest:
    """The text of a manifest and the places of its scalars."""

    text: str
    file: str
    rows: list[int] = field(default_factory=list)
    known: dict[int, dict[int, int]] = field(default_factory=dict)
    """Places that were looked up, by scalar: all pods of a template ask for the same ones."""

    def __post_init__(self) -> None:
        self.rows = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def origin(self, at: At | None) -> Origin:
        """Where a node is written."""
        if at is None:
            return Origin(self.file, 0, 0)
        return Origin(self.file, at.node.start_mark.index, at.node.end_mark.index)

    def value(self, at: At | None) -> Value:
        """A scalar with its place; unknown where there is none."""
        text = text_of(at)
        return NOT_KNOWN if text is None else Value(text, (self.origin(at),))

    def made(self, text: str, at: At | None, *varies: str) -> Value:
        """A value that an operator makes of a field."""
        return Value(text, (self.origin(at),), frozenset(varies))

    def inside(self, at: At, expansion: Expansion) -> Callable[[int, int], Origin]:
        """Where the characters of a scalar's text are written, after its references were replaced."""
        known = self.known.setdefault(id(at.node), {})
        places: list[Callable[[int], Mark]] = []

        def offset(index: int) -> int:
            source = expansion.source_of(index)
            if source not in known:
                if not places:
                    places.append(at.places(self.text))
                mark = places[0](source)
                row = min(mark.line, len(self.rows)) - 1
                known[source] = self.rows[row] + mark.column - 1
            return known[source]

        def origin(start: int, end: int) -> Origin:
            begin = offset(start)
            return Origin(self.file, begin, begin + end - start)

        return origin
