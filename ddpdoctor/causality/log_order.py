"""Blame from what was printed: which finding is the first cause, by its class and by its kind, never by clocks of other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Evidence, Finding, Role, Severity
from ddpdoctor.logs.distances import FAR_LINES
from ddpdoctor.logs.history import history_of

__all__ = ["arrange_log"]

LATER: tuple[frozenset[str], ...] = (
    frozenset(
        (
            "ENV062",
            "LOG500",
            "LOG501",
            "LOG011",
            "LOG020",
            "LOG021",
            "PROBE005",
            "PROBE006",
            "SCRIPT018",
            "SCRIPT061",
            "HOST013",
        )
    ),
    frozenset((*(f"SCRIPT{n:03}" for n in range(24, 36)), "SCRIPT065", "PROBE007", "PROBE008")),
    frozenset(
        (
            *(f"NET{n:03}" for n in (4, 5, 6, 7, 8, 9, 10, 11, 12, 21, 23, 24, 29, 33, 36, 40)),
            "PROBE001",
            "PROBE002",
            "PROBE003",
            "SCRIPT057",
        )
    ),
    frozenset(("NET003", "NET018", "NET031", "NET032", "NET045", "PROBE004", "LOG003")),
    frozenset(("LOG502",)),
    frozenset(("LOG001", "LOG002")),
    frozenset(("LOG004", "LOG015", "LAUNCH064")),
)
"""What can follow from something else, in this order: exceptions and deaths, a rank that is not in the collective, links,
exceptions of the network, NCCL's without a reason, hangs, and last what was killed. Every other code is a fault by itself and
explains all these."""


def arrange_log(findings: Iterable[Finding], kinds: Mapping[str, str], log: Log) -> tuple[Finding, ...]:
    """Give every finding about a log its role, and put them in the order in which a person should read them.

    The first cause is the finding of the earliest class; what is of a later class follows from it. An umbrella is a cause
    only where nothing of its class or an earlier one is more precise. In a job that did not fail, consequences are noise.

    Args:
        findings: stamped findings.
        kinds: the catalogue's kind by code.
        log: what they rest on.
    """
    found = list(findings)
    if not history_of(log).has_failed and not any(_can_lead(f, kinds) for f in found):
        found = [_softened(f, log) if kinds.get(f.code) == "consequence" and f.role is None else f for f in found]
    leaders = [f for f in found if _can_lead(f, kinds)] or [f for f in found if _is_error(f)]
    first = min(leaders, key=lambda f: (_weight(f, kinds), _is_long_ago(f, log)), default=None)
    leading = None if first is None else _weight(first, kinds)
    scheduled = next((f for f in leaders if _came_before_all(f, found, kinds)), None)
    if scheduled is not None:
        first, leading = scheduled, (-1, False)
    placed = [_with_role(f, kinds, leading, first) for f in found]
    return tuple(
        sorted(
            placed,
            key=lambda f: (
                _ROLES[f.role or Role.CAUSE],
                -f.worst.weight,
                _weight(f, kinds),
                _is_long_ago(f, log),
                f.code,
            ),
        )
    )


OF_PEERS = ("LOG005", "LOG006", "LOG007")
UNKNOWN_END = "Undetermined whether it failed, or ended in order with the job: its own output decides"
UNKNOWN_WHY = "Undetermined why that one ended, or whether the network between them broke: its own output decides"

_ROLES = {Role.CAUSE: 0, Role.CONSEQUENCE: 1, Role.NOISE: 2}


def _softened(finding: Finding, log: Log) -> Finding:
    """What a kernel wrote of a program that failed on a GPU is no noise, though no program says so here.

    Nor is a store that went, where the log shows nothing of how the job went.
    """
    if finding.code == "LOG007" and history_of(log).is_excerpt:
        return replace(finding.leaving_open(UNKNOWN_END), severity=Severity.WARNING, role=Role.CAUSE)
    return replace(finding, severity=Severity.NOTE, role=Role.CAUSE if finding.code == "GPU043" else Role.NOISE)


_DECIDED = re.compile(r"DUE TO [A-Z]|[Pp]reempt|TERM_RUNLIMIT|Evicted")
"""What schedulers say that end a job for a reason of their own."""


def _came_before_all(finding: Finding, found: Iterable[Finding], kinds: Mapping[str, str]) -> bool:
    """Whether a scheduler ended the job just before anything else was told: that is of its end, or of the next start."""
    if finding.code != "LOG015":
        return False
    own = next((_told_at(each) for each in finding.evidence if _DECIDED.search(each.seen or "")), None)
    others = [f for f in found if f is not finding and f.evidence and f.worst is Severity.ERROR]
    if own is None or any(_weight(f, kinds)[0] == 0 for f in others):
        return False
    places = [_told_at(f.evidence[0]) for f in others]
    return all(name == own[0] and 0 < line - own[1] <= FAR_LINES for name, line in places)


def _told_at(evidence: Evidence) -> tuple[str, int]:
    name, _, number = evidence.path.rpartition(":")
    return name, int(number) if number.isdigit() else 0


def _is_error(finding: Finding) -> bool:
    return finding.worst is Severity.ERROR and finding.role in (None, Role.CAUSE)


def _can_lead(finding: Finding, kinds: Mapping[str, str]) -> bool:
    return _is_error(finding) and kinds.get(finding.code, "cause") in ("cause", "umbrella")


def _weight(finding: Finding, kinds: Mapping[str, str]) -> tuple[int, bool]:
    at = next((number for number, codes in enumerate(LATER, 1) if finding.code in codes), 0)
    return at, kinds.get(finding.code) == "umbrella"


def _is_long_ago(finding: Finding, log: Log) -> bool:
    """Whether the job ran on for long after what the finding rests on: what came closer to its end goes before it."""
    name, _, number = (finding.evidence[0].path if finding.evidence else "").rpartition(":")
    source = next((i for i, each in enumerate(log.sources) if each.name == name), None)
    return source is not None and number.isdigit() and history_of(log).ran_on_after(source, int(number))


def _with_role(
    finding: Finding, kinds: Mapping[str, str], leading: tuple[int, bool] | None, first: Finding | None
) -> Finding:
    if finding.role is not None:
        return finding
    kind = kinds.get(finding.code, "cause")
    if kind == "noise":
        return replace(finding, role=Role.NOISE)
    is_led = leading is not None and finding.worst is Severity.ERROR and _weight(finding, kinds) > leading
    if finding is first and finding.code in OF_PEERS and not finding.undetermined:
        return replace(finding.leaving_open(UNKNOWN_WHY), role=Role.CAUSE)
    if finding is first or (kind in ("cause", "umbrella") and not is_led):
        return replace(finding, role=Role.CAUSE)
    cause = finding.caused_by or (first.code if first is not None else None)
    return replace(finding.decided(), role=Role.CONSEQUENCE, caused_by=cause)
