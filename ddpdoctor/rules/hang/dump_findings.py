"""Findings from Flight Recorder dumps: LOG001, SCRIPT024, SCRIPT026 to SCRIPT029, SCRIPT034, SCRIPT035."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ddpdoctor.dumps.compare import compare
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges
from ddpdoctor.dumps.selection import choose
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.hang import Hang
from ddpdoctor.findings import Evidence, Finding, Severity, Where

MOST_LEFT_OUT = 3


@functools.lru_cache(maxsize=1)
def compared_dumps(hang: Hang) -> tuple[Conflict, ...]:
    return compare(hang.dumps)


def conflicts(hang: Hang, *causes: ConflictCause) -> Iterator[Conflict]:
    if not hang.dumps:
        not_here("no Flight Recorder dumps")
    return (conflict for conflict in compared_dumps(hang) if conflict.cause in causes)


def conflict_finding(hang: Hang, conflict: Conflict, more: str = "", severity: Severity | None = None) -> Finding:
    """The finding about one conflict; `more` is what the rule appends to its message."""
    op = conflict.op or conflict.expected
    call = "nothing" if conflict.op is None else f"{conflict.op}{conflict.op.place}"
    left_out = choose(hang.dumps)[1][:MOST_LEFT_OUT]
    return Finding(
        conflict.message + more,
        (
            Evidence(
                "hang.dumps",
                f"{ranges(conflict.ranks)}: {call}" if conflict.ranks else call,
                str(conflict.expected or ""),
            ),
            *(Evidence("hang.dumps", f"left out: {dump}") for dump in left_out),
        ),
        where=Where(
            rank=conflict.ranks[0] if len(conflict.ranks) == 1 else None,
            file=op.file if op is not None else None,
            line=op.line if op is not None else None,
        ),
        ranks=conflict.ranks,
        severity=severity,
    )
