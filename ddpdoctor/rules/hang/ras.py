"""What NCCL's RAS shows: LOG001, LOG004."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.ras import Peer, Ras
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import in_hangs


@in_hangs("LOG001")
def lagging(hang: Hang) -> Iterator[Finding]:
    """Ranks whose count of a collective is behind that of most, or the few that wait for most."""
    if not hang.ras:
        not_here("NCCL's RAS was not asked")
    for each in hang.ras:
        behind, ahead = _behind(each), _ahead(each)
        if behind:
            kind, late, low, high = behind
            kind = kind or "collectives"
            yield _finding(
                each,
                late,
                f"NCCL's RAS: {ranges(p.rank for p in late)} launched {low} {kind}, the others up to {high}; "
                "one snapshot: it is stuck if a second one some seconds later shows the same numbers",
                Severity.WARNING,
            )
        elif ahead:
            kind, early, low, high = ahead
            yield replace(
                _finding(
                    each,
                    early,
                    f"NCCL's RAS: {ranges(p.rank for p in early)} launched {high} {kind or 'collectives'} and wait for others, "
                    f"of which {each.tallies[kind][low]} launched {low}; RAS does not list those; one snapshot: it is stuck if a "
                    "second one some seconds later shows the same numbers",
                    Severity.WARNING,
                ),
                ranks=(),
            )


@in_hangs("LOG004")
def dead(hang: Hang) -> Iterator[Finding]:
    """Ranks that RAS takes for dead, or that did not answer it."""
    if not hang.ras:
        not_here("NCCL's RAS was not asked")
    for each in hang.ras:
        gone = tuple(p for p in each.peers if p.trouble in ("dead", "incomplete"))
        if gone:
            yield _finding(
                each, gone, f"NCCL's RAS has no answer of {ranges(p.rank for p in gone)}: dead, or too stuck to answer"
            )


def _behind(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which a minority of the ranks is behind."""
    for kind in sorted({kind for peer in ras.peers for kind in peer.counts}):
        counted = [peer for peer in ras.peers if kind in peer.counts]
        high = max(*ras.tallies.get(kind, (0,)), *(peer.counts[kind] for peer in counted))
        late = tuple(peer for peer in counted if peer.counts[kind] < high)
        if late and (len(late) * 2 < (ras.size or len(counted)) or ras.size is None):
            return kind, late, min(peer.counts[kind] for peer in late), high
    return None


def _ahead(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which the only ranks that are listed came further than the many that are not."""
    for kind, tally in sorted(ras.tallies.items()):
        listed = tuple(peer for peer in ras.peers if kind in peer.counts)
        if len(tally) > 1 and listed and all(peer.counts[kind] == max(tally) for peer in listed):
            return kind, listed, min(tally), max(tally)
    return None


def _finding(ras: Ras, peers: tuple[Peer, ...], message: str, severity: Severity | None = None) -> Finding:
    only = peers[0] if len(peers) == 1 else None
    return Finding(
        message,
        (Evidence("hang.ras", f"communicator {ras.name}: {ranges(p.rank for p in peers)}", "the same on all ranks"),),
        where=Where(host=only.host or None if only else None, rank=only.rank if only else None),
        ranks=tuple(p.rank for p in peers),
        severity=severity,
    )
