"""Findings about a log in causal order: which is the first cause, by its stage and its kind, never by clocks of other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.causality.arrange import in_order
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.causality.groups import grouped
from ddpdoctor.facts.log import JobOutcome, Log
from ddpdoctor.findings import CausalStage, Evidence, Finding, Role, Severity, Speaker
from ddpdoctor.logs.distances import FAR_LINES
from ddpdoctor.logs.history import history_of

__all__ = ["arrange_log"]


def arrange_log(findings: Iterable[Finding], graph: CausalGraph, log: Log) -> tuple[Finding, ...]:
    """Give every finding about a log its role, and put them in the order in which a person should read them.

    The first cause is the finding of the earliest stage; what is of a later stage follows from it. An umbrella is a cause
    only where nothing of its stage or an earlier one is more precise. In a job that did not fail, consequences are noise.

    Args:
        findings: stamped findings.
        graph: what the causes declare.
        log: what they rest on.
    """
    found = list(findings)
    if history_of(log).outcome is JobOutcome.INTERRUPTED:
        found = _after_interruption(found, graph)
    if not history_of(log).has_failed and not any(_can_lead(f, graph) for f in found):
        found = [
            _softened(f, graph, log) if graph.kind(f.code) == "consequence" and f.role is None else f for f in found
        ]
    leaders = [f for f in found if _can_lead(f, graph)] or [f for f in found if _is_error(f)]
    first = min(leaders, key=lambda f: (graph.position(f.code), _is_long_ago(f, log)), default=None)
    leading: tuple[int, bool] | None = None if first is None else graph.position(first.code)
    scheduled = next((f for f in leaders if _came_before_all(f, found, graph)), None)
    if scheduled is not None:
        first, leading = scheduled, (-1, False)  # before every stage
    placed = [_with_role(f, graph, leading, first) for f in found]
    return grouped(sorted(placed, key=lambda f: (*in_order(f), graph.position(f.code), _is_long_ago(f, log), f.code)))


def _after_interruption(found: list[Finding], graph: CausalGraph) -> list[Finding]:
    """The findings of a job that somebody interrupted: everything that is told of its end follows from that."""
    by = next((f for f in found if graph.speaker(f.code) is Speaker.PERSON), None)
    if by is None:
        return found
    hung = (CausalStage.OUT_OF_TIME, CausalStage.HANG)  # ranks that had waited for long before they were interrupted
    late = [
        f
        for f in found
        if f is not by
        and (graph.kind(f.code) == "consequence" or graph.stage(f.code) >= CausalStage.DEATH)
        and graph.stage(f.code) not in hung
    ]
    return [
        replace(f.decided(), severity=Severity.NOTE, role=Role.CONSEQUENCE, caused_by=by.code) if f in late else f
        for f in found
    ]


LOST_A_PEER = (Speaker.SURVIVOR, Speaker.STORE_CLIENT)
UNKNOWN_END = "Either that process failed, or it exited normally with the job: read its own output to decide"
UNKNOWN_WHY = "Either that rank failed, or the network between them broke: read that rank's own output to decide"


def _softened(finding: Finding, graph: CausalGraph, log: Log) -> Finding:
    """A kernel message about a program that failed on a GPU is not noise, even if no program reports the failure here.

    Nor is a store that went, where the log shows nothing of how the job went.
    """
    speaker = graph.speaker(finding.code)
    if speaker is Speaker.STORE_CLIENT and history_of(log).is_excerpt:
        return replace(finding.leaving_open(UNKNOWN_END), severity=Severity.WARNING, role=Role.CAUSE)
    return replace(finding, severity=Severity.NOTE, role=Role.CAUSE if speaker is Speaker.KERNEL else Role.NOISE)


_DECIDED = re.compile(r"DUE TO [A-Z]|[Pp]reempt|TERM_RUNLIMIT|Evicted")
"""What schedulers say that end a job for a reason of their own."""


def _came_before_all(finding: Finding, found: Iterable[Finding], graph: CausalGraph) -> bool:
    """Whether a scheduler ended the job just before anything else was told: that is of its end, or of the next start."""
    if graph.speaker(finding.code) is not Speaker.SCHEDULER:
        return False
    own = next((_told_at(each) for each in finding.evidence if _DECIDED.search(each.seen or "")), None)
    others = [f for f in found if f is not finding and f.evidence and f.worst is Severity.ERROR]
    if own is None or any(graph.stage(f.code) is CausalStage.FAULT for f in others):
        return False
    places = [_told_at(f.evidence[0]) for f in others]
    return all(name == own[0] and 0 < line - own[1] <= FAR_LINES for name, line in places)


def _told_at(evidence: Evidence) -> tuple[str, int]:
    name, _, number = evidence.path.rpartition(":")
    return name, int(number) if number.isdigit() else 0


def _is_error(finding: Finding) -> bool:
    return finding.worst is Severity.ERROR and finding.role in (None, Role.CAUSE)


def _can_lead(finding: Finding, graph: CausalGraph) -> bool:
    return _is_error(finding) and graph.kind(finding.code) in ("cause", "umbrella")


def _is_long_ago(finding: Finding, log: Log) -> bool:
    """Whether the job ran on for long after what the finding rests on: what came closer to its end goes before it."""
    name, _, number = (finding.evidence[0].path if finding.evidence else "").rpartition(":")
    source = next((i for i, each in enumerate(log.sources) if each.name == name), None)
    return source is not None and number.isdigit() and history_of(log).ran_on_after(source, int(number))


def _with_role(
    finding: Finding, graph: CausalGraph, leading: tuple[int, bool] | None, first: Finding | None
) -> Finding:
    if finding.role is not None:
        return finding
    kind = graph.kind(finding.code)
    if kind == "noise":
        return replace(finding, role=Role.NOISE)
    is_led = leading is not None and finding.worst is Severity.ERROR and graph.position(finding.code) > leading
    if finding is first and graph.speaker(finding.code) in LOST_A_PEER and not finding.undetermined:
        return replace(finding.leaving_open(UNKNOWN_WHY), role=Role.CAUSE)
    if finding is first or (kind in ("cause", "umbrella") and not is_led):
        return replace(finding, role=Role.CAUSE)
    cause = finding.caused_by or (first.code if first is not None else None)
    return replace(finding.decided(), role=Role.CONSEQUENCE, caused_by=cause)
