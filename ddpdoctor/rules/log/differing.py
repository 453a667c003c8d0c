"""SCRIPT027, SCRIPT028, SCRIPT029 in logs: ranks that all wait, but not in the same collective."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.logs.collective_waits import CollectiveWait, collective_waits
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.calls import call, names
from ddpdoctor.rules.log.collectives import parties_missing
from ddpdoctor.rules.log.fingerprints import fingerprints
from ddpdoctor.rules.log.signatures import shortened

SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Collectives in which all ranks pass as many elements."""


@in_logs("SCRIPT027")
def order_differs(log: Log) -> Iterator[Finding]:
    """All ranks wait, but not in the same call: other operations under one number, or other lines of the script."""
    named = fingerprints(log, "Op type")
    if named is not None:
        yield named
        return
    waited = collective_waits(log)
    if len(waited) < 2:
        return
    for seq in sorted({wait.seq for wait in waited if wait.seq is not None}):
        same = [wait for wait in waited if wait.seq == seq and wait.op is not None]
        if len({wait.op for wait in same}) > 1 and len({wait.group for wait in same} - {None}) <= 1:
            yield _differing(log, same, f"different operations as collective number {seq}")
            return
    places = {wait.place for wait in waited}
    if all(wait.seq is None for wait in waited) and None not in places and len(places) > 1 and not parties_missing(log):
        yield _differing(log, waited, "different calls")


@in_logs("SCRIPT028")
def shape_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different sizes."""
    named = fingerprints(log, "Tensor shapes")
    if named is not None:
        yield named
        return
    waited = [
        wait
        for wait in collective_waits(log)
        if wait.seq is not None and wait.op in SAME_SIZE and wait.size is not None
    ]
    for seq in sorted({wait.seq for wait in waited if wait.seq is not None}):
        same = [wait for wait in waited if wait.seq == seq]
        if (
            len({wait.op for wait in same}) == len({wait.group for wait in same}) == 1
            and len({w.size for w in same}) > 1
        ):
            yield _differing(log, same, f"tensors of different sizes in collective number {seq}")
            return


@in_logs("SCRIPT029")
def dtype_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different types."""
    named = fingerprints(log, "Tensor dtypes")
    if named is not None:
        yield named


def _differing(log: Log, waited: list[CollectiveWait], what: str) -> Finding:
    """The ranks in the minority are to blame; in a tie nobody is."""
    calls: dict[object, list[CollectiveWait]] = {}
    for wait in waited:
        calls.setdefault((wait.op, wait.size) if wait.seq is not None else wait.place, []).append(wait)
    groups = sorted(calls.values(), key=len)
    fewest = groups[0] if len(groups[0]) < len(groups[-1]) else []
    ranks = tuple(sorted({wait.who.rank for wait in fewest if wait.who.rank is not None}))
    place = fewest[0].place if fewest else groups[0][0].place
    told = "; ".join(
        f"{names(group) or 'ranks'}: {call(group[0])}" for group in sorted(groups, key=len, reverse=True)[:4]
    )
    return Finding(
        f"the ranks wait in {what}: {told}",
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
