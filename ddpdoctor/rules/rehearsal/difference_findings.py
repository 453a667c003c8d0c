"""From the first difference between the ranks of a rehearsal to a finding: both sides, with their lines."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.facts.rehearsal import CodePlace, Difference, DifferenceKind, Rehearsal, RehearsedCall, Side
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.wording import counted

__all__ = ["difference_findings", "file_of", "named_place"]

POINT_TO_POINT = (DifferenceKind.UNMATCHED, DifferenceKind.SEND_ORDER, DifferenceKind.BUFFER)
MOST_SIDES = 3


def difference_findings(rehearsal: Rehearsal, *kinds: DifferenceKind, label: str) -> Iterator[Finding]:
    """The finding about the first difference, if it is of one of these kinds."""
    found = rehearsal.difference
    if found is not None and found.kind in kinds:
        yield _finding(rehearsal, found, label)


def _finding(rehearsal: Rehearsal, found: Difference, label: str) -> Finding:
    first = found.sides[0]
    place = _shown(found)
    parts = [_words(rehearsal, side, found.kind) for side in found.sides[:MOST_SIDES]]
    number = "" if found.kind in POINT_TO_POINT else f"collective {found.number}: "
    evidence = tuple(
        Evidence(f"rehearsal.{named_place(rehearsal, side.place)}", _evidence(side), "the same on all ranks")
        for side in found.sides
        if side.place is not None
    )
    if found.condition is not None:
        evidence = (
            Evidence(f"rehearsal.{named_place(rehearsal, found.condition)}", "the condition that the ranks differ in"),
            *evidence,
        )
    return Finding(
        f"{number}{'; '.join(parts)}",
        evidence=evidence,
        where=Where(
            rank=first.ranks[0] if len(first.ranks) == 1 else None,
            file=file_of(rehearsal, place),
            line=place.line if place is not None else None,
        ),
        ranks=first.ranks,
        label=label,
    )


def _shown(found: Difference) -> CodePlace | None:
    """The line under the headline: the one to change."""
    return found.sides[0].place or next((side.place for side in found.sides if side.place is not None), None)


def _words(rehearsal: Rehearsal, side: Side, kind: DifferenceKind) -> str:
    """`ranks 0, 2 all_reduce([4] float32) at train.py:41`."""
    who = ranges(side.ranks)
    if side.call is None:
        is_plural = len(side.ranks) > 1
        if side.state == "left":
            steps = {r.steps for r in rehearsal.ranks if r.rank in side.ranks}
            after = (
                f" after {counted(steps.pop(), 'step')}"
                if len(steps) == 1 and max(r.steps for r in rehearsal.ranks)
                else ""
            )
            return f"{who} left{after}"
        if side.state == "elsewhere":
            return f"{who} {'are' if is_plural else 'is'} at {named_place(rehearsal, side.place)}"
        return f"{who} {side.state}"
    place = f" at {named_place(rehearsal, side.place)}" if side.place is not None else ""
    return f"{who} {_call_words(side.call, kind)}{place}"


def _call_words(call: RehearsedCall, kind: DifferenceKind) -> str:
    """The call with what differs."""
    text = _operation(call)
    if kind is DifferenceKind.ROOT:
        return f"{call.operation} with root {call.root}"
    if kind is DifferenceKind.REDUCTION:
        return f"{call.operation} with {call.reduction}"
    if call.peer is not None:
        return f"{text} {'from' if 'recv' in call.operation else 'to'} rank {call.peer}"
    return f"runs {text}" if call.operation in ("backward", "forward") else text


def _operation(call: RehearsedCall) -> str:
    return (
        "the backward pass"
        if call.operation == "backward"
        else "the forward pass"
        if call.operation == "forward"
        else str(call)
    )


def _evidence(side: Side) -> str:
    return f"{ranges(side.ranks)}: {side.state if side.call is None else _operation(side.call)}"


def file_of(rehearsal: Rehearsal, place: CodePlace | None) -> str | None:
    """The file of a place, relative to the working folder if it is in it."""
    if place is None:
        return None
    prefix = rehearsal.folder.rstrip("/") + "/"
    return place.file.removeprefix(prefix) if rehearsal.folder else place.file


def named_place(rehearsal: Rehearsal, place: CodePlace | None) -> str:
    """`train.py:41`."""
    return "an unknown line" if place is None else str(place)
