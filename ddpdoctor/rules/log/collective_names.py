"""How a finding tells who waited in which call."""

from __future__ import annotations

from ddpdoctor.logs.collective_waits import CollectiveWait
from ddpdoctor.rules.log.signatures import shortened

__all__ = ["call", "calls", "names", "ranks_named"]


def call(wait: CollectiveWait) -> str:
    """The operation, its number and its size, as far as they are known."""
    if wait.op is None and wait.seq is None and wait.place is None:
        return shortened(wait.line.text)
    what = f"{wait.op or 'a collective'}" + (f" number {wait.seq}" if wait.seq is not None else "")
    size = f" of {wait.size} elements" if wait.size and wait.size.isdigit() else ""
    return f"{what}{size}" + (f" at {wait.place.file}:{wait.place.line}" if wait.place is not None else "")


def names(waited: list[CollectiveWait], but: tuple[int, ...] = ()) -> str:
    """The ranks that waited, `but` those that did so in another call; nothing where none is known."""
    return ranks_named(sorted({wait.who.rank for wait in waited if wait.who.rank is not None} - {*but}))


def ranks_named(ranks: list[int]) -> str:
    """`ranks 1, 2`; nothing where there is none."""
    if not ranks:
        return ""
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def calls(waited: list[CollectiveWait]) -> str:
    """In which call they waited; who did in which where they differ."""
    groups: dict[tuple[object, ...], list[CollectiveWait]] = {}
    for wait in waited:
        groups.setdefault((wait.op, wait.seq), []).append(wait)
    if len(groups) == 1:
        return call(waited[0])
    return "; ".join(f"{names(group) or 'a rank'} in {call(group[0])}" for group in list(groups.values())[:4])
