"""From an observation of a rehearsal to a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.facts.rehearsal import ObservationKind, Rehearsal, RehearsalObservation
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules.rehearsal.difference_findings import file_of, named_place

__all__ = ["observation_findings"]


def observation_findings(
    rehearsal: Rehearsal,
    kind: ObservationKind,
    message: Callable[[RehearsalObservation, str], str],
    *,
    label: str,
    expected: str,
    severity: Severity | None = None,
) -> Iterator[Finding]:
    """One finding for each observation of a kind. `message` takes the observation and its ranks in words."""
    for each in rehearsal.observations:
        if each.kind is kind:
            yield _finding(rehearsal, each, message(each, ranges(each.ranks)), label, expected, severity)


def _finding(
    rehearsal: Rehearsal,
    each: RehearsalObservation,
    message: str,
    label: str,
    expected: str,
    severity: Severity | None,
) -> Finding:
    values = ", ".join(f"{name} {value}" for name, value in each.values.items())
    evidence = [Evidence(f"rehearsal.{named_place(rehearsal, each.place)}", values or ranges(each.ranks), expected)]
    for outer in each.places[1:2]:
        evidence.append(Evidence(f"rehearsal.{named_place(rehearsal, outer)}", "called from here", ""))
    if each.other is not None:
        evidence.append(Evidence(f"rehearsal.{named_place(rehearsal, each.other)}", "the other place", ""))
    return Finding(
        message,
        evidence=tuple(evidence),
        where=Where(
            rank=each.ranks[0] if len(each.ranks) == 1 else None,
            file=file_of(rehearsal, each.place),
            line=each.place.line if each.place is not None else None,
        ),
        ranks=each.ranks,
        severity=severity,
        label=label,
    )
