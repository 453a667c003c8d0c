"""The records of rehearsed processes: one JSON object per line, checked before anything uses them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ddpdoctor.facts.rehearsal import CodePlace

__all__ = ["LONGEST", "Record", "RecordReader", "is_typed", "places_of"]

LONGEST = 1 << 20
"""Bytes of one record; a longer line is dropped."""
Record = dict[str, Any]

NUMBERS = (
    "n",
    "index",
    "loader",
    "iteration",
    "batches",
    "call",
    "step",
    "count",
    "size",
    "pid",
    "world",
    "code",
    "optimizer",
    "first",
    "last",
)
TEXTS = ("g", "op", "how", "what", "path", "sampler", "text", "type", "backend", "kind", "file")
LISTS = (
    "at",
    "in",
    "out",
    "rows",
    "sums",
    "buffers",
    "names",
    "shapes",
    "unwaited",
    "started",
    "devices",
    "device_ids",
    "keys",
    "ranks",
    "lines",
)
"""Fields that have one type, or are null, in every record; a record in which one has another type is none."""


class RecordReader:
    """Cuts a stream of bytes into records. What is not a record is counted in `dropped`, never raised."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[Record]:
        """The records that end in these bytes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._is_skipping and lines:
            lines.pop(0)
            self._is_skipping = False
        if len(self._rest) > LONGEST:
            self._rest, self._is_skipping = b"", True
            self.dropped += 1
        return [record for line in lines if (record := self._record(line)) is not None]

    def _record(self, line: bytes) -> Record | None:
        try:
            value = json.loads(line) if len(line) <= LONGEST else None
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and isinstance(value.get("k"), str) and is_typed(value):
            return value
        self.dropped += 1
        return None


def is_typed(record: Record) -> bool:
    """Whether the fields of known names have their types."""
    for names, kind in ((NUMBERS, int), (TEXTS, str), (LISTS, list)):
        if any(not isinstance(record.get(name), (kind, type(None))) for name in names):
            return False
    return True


def places_of(value: object) -> tuple[CodePlace, ...]:
    """The places in a record: lists of file, line and function; whatever is not one is left out."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, dict)):
        return ()
    return tuple(
        CodePlace(each[0], each[1], str(each[2]))
        for each in value
        if isinstance(each, (list, tuple)) and len(each) == 3 and isinstance(each[0], str) and type(each[1]) is int
    )
