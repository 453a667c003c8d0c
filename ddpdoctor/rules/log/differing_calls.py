"""SCRIPT027, SCRIPT028, SCRIPT029 in logs: all ranks wait, but not in the same collective."""

from __future__ import annotations

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.logs.collective_waits import CollectiveWait
from ddpdoctor.rules.log.collective_names import call, names
from ddpdoctor.rules.log.signatures import shortened


def differing_calls(log: Log, waits: list[CollectiveWait], what: str) -> Finding:
    """The ranks in the minority are named as the cause; in a tie, none is."""
    calls: dict[object, list[CollectiveWait]] = {}
    for wait in waits:
        calls.setdefault((wait.op, wait.size) if wait.seq is not None else wait.place, []).append(wait)
    groups = sorted(calls.values(), key=len)
    fewest = groups[0] if len(groups[0]) < len(groups[-1]) else []
    ranks = tuple(sorted({wait.who.rank for wait in fewest if wait.who.rank is not None}))
    place = fewest[0].place if fewest else groups[0][0].place
    calls_of_ranks = ", ".join(
        f"{_difference(group[0], waits)} on {names(group) or 'others'}"
        for group in sorted(groups, key=len, reverse=True)[:4]
    )
    return Finding(
        f"{what}: {calls_of_ranks}",
        tuple(
            Evidence(log.place(w.line.source, w.line.number), shortened(w.line.text))
            for group in groups
            for w in group[:1]
        ),
        where=Where(
            rank=ranks[0] if len(ranks) == 1 else None,
            file=None if place is None else place.file,
            line=None if place is None else place.line,
        ),
        ranks=ranks,
    )


def _difference(wait: CollectiveWait, waits: list[CollectiveWait]) -> str:
    """The operation, size, or place in which a rank's call differs from the others."""
    if len({other.op for other in waits}) > 1 or wait.seq is None:
        return wait.op if wait.op is not None and wait.seq is not None else call(wait)
    return f"{wait.size} elements"
