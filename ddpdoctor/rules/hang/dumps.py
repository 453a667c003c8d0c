"""What Flight Recorder dumps show: LOG001, SCRIPT024, SCRIPT026 to SCRIPT029, SCRIPT034, SCRIPT035."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ddpdoctor.dumps.compare import compare
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges
from ddpdoctor.dumps.selection import choose
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.hang import Hang
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import in_hangs

MOST_LEFT = 3


@functools.lru_cache(maxsize=1)
def _compared(hang: Hang) -> tuple[Conflict, ...]:
    return compare(hang.dumps)


def _conflicts(hang: Hang, *causes: ConflictCause) -> Iterator[Conflict]:
    if not hang.dumps:
        not_here("no Flight Recorder dumps")
    return (each for each in _compared(hang) if each.cause in causes)


def _finding(hang: Hang, each: Conflict, more: str = "", severity: Severity | None = None) -> Finding:
    """The finding about one conflict; `more` is what the rule adds to its words."""
    op = each.op or each.expected
    seen = "nothing" if each.op is None else f"{each.op}{each.op.place}"
    left = choose(hang.dumps)[1][:MOST_LEFT]
    return Finding(
        each.message + more,
        (
            Evidence("hang.dumps", f"{ranges(each.ranks)}: {seen}" if each.ranks else seen, str(each.expected or "")),
            *(Evidence("hang.dumps", f"left out: {words}") for words in left),
        ),
        where=Where(
            rank=each.ranks[0] if len(each.ranks) == 1 else None,
            file=op.file if op is not None else None,
            line=op.line if op is not None else None,
        ),
        ranks=each.ranks,
        severity=severity,
    )


@in_hangs("LOG001")
def collective_timeout(hang: Hang) -> Iterator[Finding]:
    """A rank is missing in a collective, or nobody is and it does not end."""
    for each in _conflicts(hang, ConflictCause.MISSING):
        words = "; what it did since is the cause: `ddpdoctor hang` on its node, or py-spy dump, tells"
        yield _finding(hang, each, words, None if each.is_certain else Severity.WARNING)
    for each in _conflicts(hang, ConflictCause.NO_DUMP):
        severity = None if each.waiting else Severity.WARNING
        yield _finding(hang, each, "; read its own output" if each.waiting else "", severity)
    for each in _conflicts(hang, ConflictCause.NOT_STARTED):
        yield _finding(hang, each)
    for each in _conflicts(hang, ConflictCause.TOGETHER):
        words = "; look for a sick GPU, link or network: `ddpdoctor check` on these nodes"
        yield _finding(hang, each, words, None if each.is_certain else Severity.WARNING)


@in_hangs("SCRIPT024")
def in_rank_branch(hang: Hang) -> Iterator[Finding]:
    """Some ranks call one collective more."""
    for each in _conflicts(hang, ConflictCause.EXTRA):
        yield _finding(hang, each)


@in_hangs("SCRIPT026")
def rank_dependent(hang: Hang) -> Iterator[Finding]:
    """Some ranks leave a collective out."""
    for each in _conflicts(hang, ConflictCause.SKIPPED):
        yield _finding(hang, each)


@in_hangs("SCRIPT027")
def order(hang: Hang) -> Iterator[Finding]:
    """The calls stand in different orders, in one group or across groups."""
    for each in _conflicts(hang, ConflictCause.ORDER):
        words = "" if each.is_certain else "; another order, or a call that only some ranks make"
        yield _finding(hang, each, words)
    for each in _conflicts(hang, ConflictCause.CYCLE):
        yield _finding(hang, each)


@in_hangs("SCRIPT028")
def shape(hang: Hang) -> Iterator[Finding]:
    """One collective, different sizes."""
    for each in _conflicts(hang, ConflictCause.SHAPE):
        yield _finding(hang, each)


@in_hangs("SCRIPT029")
def dtype(hang: Hang) -> Iterator[Finding]:
    """One collective, different types."""
    for each in _conflicts(hang, ConflictCause.DTYPE):
        yield _finding(hang, each)


@in_hangs("SCRIPT034")
def send_order(hang: Hang) -> Iterator[Finding]:
    """Both ends send first, or both receive."""
    for each in _conflicts(hang, ConflictCause.SEND_ORDER):
        yield _finding(hang, each)


@in_hangs("SCRIPT035")
def no_receiver(hang: Hang) -> Iterator[Finding]:
    """The other end of a send or recv was never posted."""
    for each in _conflicts(hang, ConflictCause.NO_RECEIVER):
        yield _finding(hang, each, severity=None if each.is_certain else Severity.WARNING)
