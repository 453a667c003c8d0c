"""How a headline names collectives and the ranks that wait in them."""

from __future__ import annotations

from ddpdoctor.logs.collective_waits import CollectiveWait
from ddpdoctor.rules.log.headlines import clipped, place_name, ranks_named

__all__ = ["call", "calls", "names"]


def call(wait: CollectiveWait) -> str:
    """`ALLREDUCE number 7 of 4096 elements at train.py:12`, as far as it is known."""
    if wait.op is None and wait.seq is None and wait.place is None:
        return clipped(wait.line.text)
    name = f"{wait.op or 'a collective'}" + (f" number {wait.seq}" if wait.seq is not None else "")
    size = f" of {wait.size} elements" if wait.size and wait.size.isdigit() else ""
    return f"{name}{size}" + (f" at {place_name(wait.place.file, wait.place.line)}" if wait.place is not None else "")


def names(waits: list[CollectiveWait], but: tuple[int, ...] = ()) -> str:
    """The ranks that waited, without `but`, which waited in another call; "" if none is known."""
    return ranks_named(sorted({wait.who.rank for wait in waits if wait.who.rank is not None} - {*but}))


def calls(waits: list[CollectiveWait]) -> str:
    """The call in which they waited; with the ranks of each call if there are several."""
    groups: dict[tuple[object, ...], list[CollectiveWait]] = {}
    for wait in waits:
        groups.setdefault((wait.op, wait.seq), []).append(wait)
    if len(groups) == 1:
        return call(waits[0])
    return "; ".join(f"{names(group) or 'a rank'} in {call(group[0])}" for group in list(groups.values())[:4])
