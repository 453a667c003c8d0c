"""Which ranks did not take part in the collective in which others waited."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, Who
from ddpdoctor.logs.collective_waits import (
    CollectiveWait,
    Participant,
    collective_waits,
    participants,
    ranks_behind,
    ranks_named_missing,
)
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import SEQUENCE_GAP
from ddpdoctor.logs.matching import matching_lines

__all__ = ["missing_participants"]


LOST_A_PEER = (r"Connection closed by (remote )?peer", r"Connection reset by peer")
"""What a rank prints that was in the collective as well when another left it."""

REPEATED = re.compile(r"\[repeated \d+x across cluster\]|(?:repeated|same) (?:on|by|for) all (?:other )?ranks")
"""Where the lines of other ranks were left out, by Ray or by whoever shortened the log."""


def missing_participants(log: Log) -> list[Participant]:
    """The ranks missing from the collective: named by a line, behind in its sequence, or silent while others gave up."""
    everybody = participants(log)
    named, _ = ranks_named_missing(log)
    if named:
        return [next((p for p in everybody if p.who.rank == rank), _participant(rank)) for rank in named]
    waited = collective_waits(log)
    if not waited:
        return []
    behind = ranks_behind(log, waited) or _behind(waited)
    if behind:
        return [p for p in everybody if p.who.rank in behind]
    there = [
        *(wait.line for wait in waited),
        *matching_lines(log, LOST_A_PEER),
        *(line for line, _ in context_lines(log, "watched")),
    ]
    ranks = {line.who.rank for line in there} - {None}
    sources = {line.source for line in there}
    silent = [
        p for p in everybody if p.who.rank not in ranks and not (p.sources and set(p.sources) <= sources and not ranks)
    ]
    if any(REPEATED.search(line.text) for line in (*log.lines, *log.tails)):
        return []  # the others printed the same
    return silent if 0 < len(silent) <= max(1, len(waited)) else []


def _participant(rank: int) -> Participant:
    return Participant(f"rank {rank}", Who(rank=rank), ())


def _behind(waited: list[CollectiveWait]) -> set[int]:
    """Ranks that gave up at an earlier number than the others, in the same group."""
    numbered = [wait for wait in waited if wait.seq is not None and wait.who.rank is not None]
    if len({wait.group for wait in numbered}) != 1:
        return set()
    newest = max(wait.seq or 0 for wait in numbered)
    oldest = min(wait.seq or 0 for wait in numbered)
    if numbered[0].group is None and newest - oldest > SEQUENCE_GAP:
        return set()  # numbers of other groups, which old lines do not name
    late = {wait.who.rank for wait in numbered if (wait.seq or 0) < newest and wait.who.rank is not None}
    is_pair = len(numbered) == 2 and numbered[0].group is not None
    return late if len(late) * 2 < len(numbered) or is_pair else set()
