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

MOST_LEFT = 3


@functools.lru_cache(maxsize=1)
def compared_dumps(hang: Hang) -> tuple[Conflict, ...]:
    return compare(hang.dumps)


def conflicts(hang: Hang, *causes: ConflictCause) -> Iterator[Conflict]:
    if not hang.dumps:
        not_here("no Flight Recorder dumps")
    return (each for each in compared_dumps(hang) if each.cause in causes)


def conflict_finding(hang: Hang, each: Conflict, more: str = "", severity: Severity | None = None) -> Finding:
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
