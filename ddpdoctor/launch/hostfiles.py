"""Hostfiles: which hosts, and how many slots each."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HostSlots", "deepspeed_hosts", "malformed_row", "mpi_hosts"]


@dataclass(frozen=True, slots=True)
class HostSlots:
    """One host. `slots` is None where it is not written."""

    name: str
    slots: int | None


_SLOTS = re.compile(r"\bslots\s*=\s*(\d{1,6})")
_DEEPSPEED = re.compile(r"(\S+)\s+slots=(\d{1,6})")


def _rows(text: str) -> list[tuple[int, str]]:
    """The rows with content, with their numbers from 1."""
    rows = ((number, row.partition("#")[0].strip()) for number, row in enumerate(text.splitlines(), start=1))
    return [(number, row) for number, row in rows if row]


def deepspeed_hosts(text: str) -> list[HostSlots]:
    """The hosts that deepspeed reads: rows of `HOST slots=N`."""
    found = (_DEEPSPEED.match(row) for _, row in _rows(text))
    return [HostSlots(match[1], int(match[2])) for match in found if match]


def malformed_row(text: str) -> tuple[int, str] | None:
    """The first row that deepspeed refuses, with its number: not `HOST slots=N`, or a host for the second time."""
    seen = set()
    for number, row in _rows(text):
        match = _DEEPSPEED.match(row)
        if match is None or match[1] in seen:
            return number, row
        seen.add(match[1])
    return None


def mpi_hosts(text: str) -> list[HostSlots]:
    """The hosts of an Open MPI hostfile: `HOST`, `HOST slots=N`."""
    found = []
    for _, row in _rows(text):
        slots = _SLOTS.search(row)
        found.append(HostSlots(row.split()[0], int(slots[1]) if slots else None))
    return found
