"""Compares the objects of a manifest with their fields: unknown and repeated fields, and values of another type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddpdoctor.facts.refused import Refused, RefusedKind
from ddpdoctor.launch.manifests.object_fields import LENIENT, ROOTS, known_names, object_fields
from ddpdoctor.launch.manifests.yaml_nodes import At, text_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["FieldTable", "refused_fields", "refused_of"]

DEEPEST = 40
MOST_FIELDS = 4_000
"""Of one object."""
CLOSE = 0.8
"""How alike a misspelt field and the one that is meant are: `volumeMount`, `enviroment`, `ntasks-per-nodes`."""
_OPEN = re.compile(r"[${}<>%]|^\*$")
"""A value that something else replaces."""
_WORDS = {"s": "text", "i": "a whole number", "b": "true or false", "q": "a quantity", "[": "a list", "{": "a mapping"}


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The types of a format. `is_lenient`: it has more fields than the table, so that only likely mistakes count.

    `elsewhere` are fields of other places of the format; a field that begins with one of `free` is anything.
    """

    types: Mapping[str, Mapping[str, str]]
    elsewhere: frozenset[str] = frozenset()
    free: tuple[str, ...] = ()
    is_lenient: bool = False
    named: Callable[[str], str] = str


def refused_fields(root: At) -> Iterator[Refused]:
    """The fields of an object of Kubernetes that the API server refuses; nothing for kinds that are not known."""
    kind, version = text_of(root.get("kind")) or "", text_of(root.get("apiVersion")) or ""
    known = ROOTS.get(kind)
    if known is None or not (version == known or kind == "MPIJob"):
        return
    types = dict(object_fields())
    table = FieldTable(types, known_names(), is_lenient=kind in LENIENT)
    yield from refused_of(root, kind, table)


def refused_of(root: At, name: str, table: FieldTable) -> Iterator[Refused]:
    """The mistakes in a mapping of the type `name`."""
    yield from _Walk(table).mapping(root.node, name, table.named(name), 0)


class _Walk:
    def __init__(self, table: FieldTable) -> None:
        self._table = table
        self._seen: set[int] = set()
        self._left = MOST_FIELDS

    def value(self, node: Any, kind: str, owner: str, name: str, depth: int) -> Iterator[Refused]:
        if kind == "*" or depth > DEEPEST or node.tag.endswith(":null"):
            return
        at = At(node).mark
        shape = "sequence" if kind[0] == "[" else "mapping" if kind[0] == "{" or len(kind) > 1 else "scalar"
        if node.id != shape:
            if node.id != "scalar" or not _OPEN.search(node.value):
                what = _WORDS["{" if shape == "mapping" else kind[0] if shape == "sequence" else kind]
                seen = {"sequence": "a list", "mapping": "a mapping"}.get(node.id, _short(node.value))
                yield Refused(RefusedKind.TYPE, owner, name, what, at, seen)
        elif shape == "scalar":
            if not _fits(node, kind):
                yield Refused(RefusedKind.TYPE, owner, name, _WORDS[kind], at, _short(node.value))
        elif id(node) not in self._seen:
            self._seen.add(id(node))
            if kind[0] == "[":
                for each in node.value[:200]:
                    yield from self.value(each, kind[1:-1], owner, name, depth + 1)
            elif kind[0] == "{":
                yield from self._entries(node, kind[1:-1], owner, name, depth)
            else:
                yield from self.mapping(node, kind, self._table.named(kind), depth + 1)

    def _entries(self, node: Any, kind: str, owner: str, name: str, depth: int) -> Iterator[Refused]:
        yield from _repeated(node, owner)
        for key, value in node.value[:200]:
            inner = str(key.value) if key.id == "scalar" else ""
            yield from self.value(value, kind, owner, f"{name}.{inner}", depth + 1)

    def mapping(self, node: Any, name: str, owner: str, depth: int) -> Iterator[Refused]:
        fields = self._table.types.get(name)
        if node.id != "mapping" or fields is None or depth > DEEPEST:
            return
        yield from _repeated(node, owner)
        for key, value in node.value[:200]:
            self._left -= 1
            if self._left < 0 or key.id != "scalar":
                return
            field = str(key.value)
            if field in fields:
                yield from self.value(value, fields[field], owner, field, depth)
            elif field != "<<" and not field.startswith(self._table.free or ("\0",)) and not _OPEN.search(field):
                near = difflib.get_close_matches(field, fields, n=1, cutoff=CLOSE)
                is_meant = near or field in self._table.elsewhere or not self._table.is_lenient
                if is_meant:
                    meant = near[0] if near else ""
                    yield Refused(RefusedKind.UNKNOWN, owner, field, meant, At(key).mark, field)


def _repeated(node: Any, owner: str) -> Iterator[Refused]:
    told: set[str] = set()
    for key, _ in node.value[:200]:
        if key.id == "scalar" and key.value != "<<":
            if key.value in told:
                yield Refused(RefusedKind.REPEATED, owner, str(key.value), "one", At(key).mark, str(key.value))
            told.add(key.value)


def _fits(node: Any, kind: str) -> bool:
    """Whether a scalar has a type; quotes make text of a number, and what something else replaces fits."""
    tag, text = node.tag.rpartition(":")[2], str(node.value)
    if _OPEN.search(text):
        return True
    if kind == "s":
        return tag not in ("int", "float", "bool")
    if kind == "i":
        return bool(tag == "int")
    if kind == "b":
        return bool(tag == "bool")
    return True


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "…"
