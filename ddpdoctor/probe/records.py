"""Records in the job's store. Everybody who can connect may write there: what is broken, huge, of another shape, or without
the job's proof is left out and counted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.probe import Probe
from ddpdoctor.network.proof import NO_PROOF, Proof

__all__ = ["ARRIVAL", "CARD", "RANKED", "Records", "Shape"]

T = TypeVar("T")
Shape = Mapping[str, tuple[type, ...]]

ABSENT = type(None)
RANKED: Shape = {"rank": (int,)}
ARRIVAL: Shape = {
    "rank": (int,),
    "host": (str,),
    "pid": (int,),
    "started": (int, float),
    "local_rank": (int, ABSENT),
    "node_rank": (int, ABSENT),
    "world_size": (int,),
}
CARD: Shape = {
    "index": (int,),
    "host": (str,),
    "rank": (int,),
    "pid": (int,),
    "node_rank": (int, ABSENT),
    "local_rank": (int, ABSENT),
    "address": (str,),
    "port": (int,),
    "token": (str,),
    "gloo": (str,),
    "gloo_source": (str,),
}
MOST_BYTES = 4 << 20
"""Of one record; the largest are the reports of a host with many ranks."""
MOST_PROBE_BYTES = 64 << 20
"""Of a whole probe, unpacked."""
LARGEST = 2**63


class Records:
    """Writes and reads records; `strange` counts by key what was left out."""

    def __init__(self, proof: Proof = NO_PROOF) -> None:
        self._proof = proof
        self.strange: dict[str, int] = {}

    def line(self, value: object) -> bytes:
        """One record as a line."""
        return self._proof.sealed(json.dumps(value).encode()) + b"\n"

    def lines(self, key: str, text: bytes, shape: Shape = RANKED) -> list[dict[str, Any]]:
        """The records in a log."""
        found = (self.one(key, line, shape) for line in text.split(b"\n") if line)
        return [record for record in found if record is not None]

    def one(self, key: str, line: bytes, shape: Shape = RANKED) -> dict[str, Any] | None:
        """One record of this shape; None if it is not one."""
        value = self.value(key, line)
        if not isinstance(value, dict) or not _fits(value, shape):
            self._leave_out(key, value is not None)
            return None
        return value

    def value(self, key: str, line: bytes) -> Any:
        """Any JSON value; None if it is not one."""
        text = self._proof.opened(line.rstrip(b"\n")) if len(line) <= MOST_BYTES else None
        try:
            content = None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if content is None:
            self._leave_out(key)
        return content

    def read(self, key: str, record: object, kind: type[T]) -> T | None:
        """A record as facts of a type; None if it is not one."""
        return self.tried(key, lambda: decode(kind, record))

    def tried(self, key: str, read: Callable[[], T]) -> T | None:
        """The result of reading a record, None if it has another shape."""
        try:
            return read()
        except (FactsError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self._leave_out(key)
            return None

    def packed(self, probe: Probe) -> bytes:
        """A whole probe, compressed, because every rank of the job reads it."""
        return self._proof.sealed(zlib.compress(json.dumps(encode(probe)).encode(), 1))

    def unpacked(self, key: str, value: bytes) -> Probe | None:
        """The probe that `packed` wrote; None if it is not one."""
        text = self._proof.opened(value)
        if text is None:
            self._leave_out(key)
            return None
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(text, MOST_PROBE_BYTES)
            return decode(Probe, json.loads(data)) if unpacker.eof else None
        except (zlib.error, ValueError, RecursionError):
            self._leave_out(key)
            return None

    def _leave_out(self, key: str, is_new: bool = True) -> None:
        if is_new:
            self.strange[key] = self.strange.get(key, 0) + 1


def _fits(value: Mapping[str, Any], shape: Shape) -> bool:
    for name, kinds in shape.items():
        item = value.get(name, ...)
        if type(item) not in kinds or (type(item) is int and not -LARGEST < item < LARGEST):
            return False
    return True
