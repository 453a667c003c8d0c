"""How a headline names collectives and the ranks that wait in them."""

from __future__ import annotations

from ddpdoctor.logs.collective_waits import CollectiveWait
from ddpdoctor.rules.log.headlines import place_name, ranks_named

__all__ = ["call", "calls", "names"]


def call(wait: CollectiveWait) -> str:
    """`ALLREDUCE number 7 at train.py:12`, as far as it is known."""
    name = f"{wait.op or 'a collective'}" + (f" number {wait.seq}" if wait.seq is not None else "")
    return name + (f" at {place_name(wait.place.file, wait.place.line)}" if wait.place is not None else "")


def names(waits: list[CollectiveWait], but: tuple[int, ...] = ()) -> str:
    """The ranks that waited, without `but`, which waited in another call; "" if none is known."""
    return ranks_named(sorted({wait.who.rank for wait in waits if wait.who.rank is not None} - {*but}))


def calls(waits: list[CollectiveWait]) -> str:
    """The call in which they waited, or what their calls have in common."""
    if len({(wait.op, wait.seq) for wait in waits}) == 1:
        return call(waits[0])
    numbers = {wait.seq for wait in waits}
    is_same_number = len(numbers) == 1 and None not in numbers
    return f"collective number {waits[0].seq}" if is_same_number else "different collectives"
