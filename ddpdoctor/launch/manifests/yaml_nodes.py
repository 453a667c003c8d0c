"""YAML as nodes that know their lines. Nothing is constructed from tags, and aliases are not copied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.light_dataclass import dataclass

__all__ = ["At", "documents", "number", "size", "text_of"]

MOST_ITEMS = 200
"""The most entries of one list or mapping that are read."""
DEEPEST = 100
"""Brackets that may be open at once in flow style: PyYAML reads them by recursion."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|K|M|G|T)?")
_UNITS = {
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


@dataclass(frozen=True, slots=True)
class At:
    """A node of a YAML document; `line` and `column` count from 1."""

    node: Any

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def column(self) -> int:
        return int(self.node.start_mark.column) + 1

    @property
    def mark(self) -> Mark:
        return Mark(self.line, self.column)

    def pairs(self, *path: str) -> Iterator[tuple[str, At]]:
        """The entries of the mapping at `path`, each key once, with those of its merge keys; empty if it is not a mapping."""
        node = self.get(*path) if path else self
        if node is None or node.node.id != "mapping":
            return
        told, waiting, count = set(), [node.node], 0
        while waiting and count < MOST_ITEMS:
            own, merged = waiting.pop(0), []
            for key, value in own.value[: MOST_ITEMS - count]:
                count += 1
                if key.id != "scalar" or (key.value in told and key.value != "<<"):
                    continue
                if key.value == "<<":
                    each = [value] if value.id == "mapping" else value.value if value.id == "sequence" else []
                    merged += [part for part in each[:MOST_ITEMS] if part.id == "mapping"]
                else:
                    told.add(key.value)
                    yield key.value, At(value)
            waiting = merged + waiting  # what is nearer wins, and counts once

    def items(self, *path: str) -> Iterator[At]:
        """The entries of the list at `path`, empty if it is not a list."""
        node = self.get(*path)
        if node is not None and node.node.id == "sequence":
            for value in node.node.value[:MOST_ITEMS]:
                yield At(value)

    def get(self, *path: str) -> At | None:
        """The node below, None without one."""
        found: At | None = self
        for name in path:
            if found is None:
                return None
            found = next((value for key, value in found.pairs() if key == name), None)
        return found

    def places(self, text: str) -> Callable[[int], Mark]:
        """Where an index in a scalar's value is in the file; for folded text the nearest line with its words."""
        rows = text.split("\n")
        value, style = str(self.node.value), self.node.style
        first = self.line if style in ("|", ">") else self.line - 1
        last = int(self.node.end_mark.line) + 1
        if style in ("|", ">"):
            found = _marks(value, rows, first, last)
        else:
            start = self.column + (1 if style in ("'", '"') else 0)
            found = [
                Mark(self.line, start, 0),
                *_marks(value, rows, first + 1, last, skip=_first_row(value, rows, self.line, start)),
            ]
        return lambda at: _nearest(found, at)


def _first_row(value: str, rows: list[str], line: int, column: int) -> int:
    """How many characters of a value are on the scalar's first line."""
    rest = rows[line - 1][column - 1 :].rstrip() if line <= len(rows) else ""
    return len(rest) if value.startswith(rest) else len(value)


def _marks(value: str, rows: list[str], first: int, last: int, skip: int = 0) -> list[Mark]:
    """A mark for each row of a block, at the index of its words in the value."""
    found, at = [], skip
    for number_ in range(first, min(last, len(rows))):
        words = rows[number_].strip().rstrip("'\"")
        where = value.find(words, at) if words else -1
        if where >= 0:
            found.append(Mark(number_ + 1, len(rows[number_]) - len(rows[number_].lstrip()) + 1, where))
            at = where + len(words)
    return found


def _nearest(marks: list[Mark], at: int) -> Mark:
    mark = next((m for m in reversed(marks) if m.at <= at), marks[0] if marks else Mark(1, 1))
    return Mark(mark.line, max(1, mark.column + at - mark.at))


def documents(path: str, text: str) -> tuple[list[At], list[str]]:
    """The documents of a YAML text, and why the rest is not YAML. JSON is YAML as well."""
    import yaml

    if _depth(text) > DEEPEST:
        return [], [f"{path}: not read: more than {DEEPEST} brackets or indents deep"]
    found: list[At] = []
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                found.append(At(node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else path
        return found, [f"{place}: not YAML: {error.problem or error.context}"]
    except yaml.YAMLError as error:  # characters that YAML does not allow
        return found, [f"{path}: not YAML: {' '.join(str(error).split())[:120]}"]
    except RecursionError:
        return found, [f"{path}: not read: nested too deeply"]
    return found, []


def _depth(text: str) -> int:
    """How deep flow brackets and block indents can be nested at most."""
    deepest = depth = 0
    for char in text:
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth = max(0, depth - 1)
    dashes = max((len(m[0]) // 2 for m in re.finditer(r"(?m)^ *(?:[-?] ){20,}", text)), default=0)
    indents = len({len(m[0]) for m in re.finditer(r"(?m)^ +", text)})
    return max(deepest, dashes, indents)


def text_of(at: At | None) -> str | None:
    """A scalar's text as written; None for everything else, including null."""
    if at is None or at.node.id != "scalar" or at.node.tag.endswith(":null"):
        return None
    return str(at.node.value)


def number(at: At | None) -> int | None:
    """A scalar that is a whole number."""
    text = text_of(at)
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


def size(at: At | None) -> int | None:
    """A Kubernetes quantity in bytes."""
    match = _SIZE.fullmatch(text_of(at) or "")
    return int(float(match[1]) * _UNITS.get(match[2] or "", 1)) if match else None
