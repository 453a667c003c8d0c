"""Orders findings about a log: the first cause is found by stage and kind, never by comparing clocks of different hosts."""

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
from ddpdoctor.logs.line_meaning import is_work_of_job

__all__ = ["arrange_log"]


def arrange_log(findings: Iterable[Finding], graph: CausalGraph, log: Log) -> tuple[Finding, ...]:
    """Give every finding about a log its role, and order them for the reader.

    The first cause is the finding of the earliest stage; findings of later stages are its consequences. An umbrella is a
    cause only if there is none of its stage or earlier that is more precise. In a job that did not fail, consequences are
    noise.

    Args:
        findings: stamped findings.
        graph: what the causes declare.
        log: the log that they are about.
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
    """The findings of a job that a user interrupted: findings about its end are consequences of that."""
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
UNKNOWN_END = "Unknown whether it failed or ended normally with the job: its own output decides"
UNKNOWN_WHY = "Unknown whether that process ended or the network between them failed: its own output decides"


def _softened(finding: Finding, graph: CausalGraph, log: Log) -> Finding:
    """A kernel message about a program that failed on a GPU is not noise, even if no program reports the failure.

    Nor is a lost store, if the log does not show how the job went, nor a lost peer with which the output ends.
    """
    speaker = graph.speaker(finding.code)
    is_open = speaker is Speaker.STORE_CLIENT and history_of(log).is_excerpt
    if is_open or (speaker is Speaker.SURVIVOR and _is_end(finding, log)):
        return replace(finding.leaving_open(UNKNOWN_END), severity=Severity.WARNING, role=Role.CAUSE)
    return replace(finding, severity=Severity.NOTE, role=Role.CAUSE if speaker is Speaker.KERNEL else Role.NOISE)


def _is_end(finding: Finding, log: Log) -> bool:
    """Whether a log without a training step and without an end ends with the line that the finding quotes."""
    is_over = history_of(log).outcome in (JobOutcome.COMPLETED, JobOutcome.FAILED, JobOutcome.INTERRUPTED)
    if is_over or not finding.evidence or any(is_work_of_job(line.text) for line in log.tails):
        return False
    place = _place_of(finding.evidence[0])
    last = {log.sources[line.source].name: line.number for line in log.tails if line.text.strip()}
    return last.get(place[0]) == place[1]


_DECIDED = re.compile(r"DUE TO [A-Z]|[Pp]reempt|TERM_RUNLIMIT|Evicted")
"""Messages of schedulers that end a job for their own reasons."""


def _came_before_all(finding: Finding, found: Iterable[Finding], graph: CausalGraph) -> bool:
    """Whether a scheduler ended the job just before all other errors, which are then about its end, or the next start."""
    if graph.speaker(finding.code) is not Speaker.SCHEDULER:
        return False
    own = next((_place_of(item) for item in finding.evidence if _DECIDED.search(item.seen or "")), None)
    others = [f for f in found if f is not finding and f.evidence and f.worst is Severity.ERROR]
    if own is None or any(graph.stage(f.code) is CausalStage.FAULT for f in others):
        return False
    places = [_place_of(f.evidence[0]) for f in others]
    return all(name == own[0] and 0 < line - own[1] <= FAR_LINES for name, line in places)


def _place_of(evidence: Evidence) -> tuple[str, int]:
    name, _, number = evidence.path.rpartition(":")
    return name, int(number) if number.isdigit() else 0


def _is_error(finding: Finding) -> bool:
    return finding.worst is Severity.ERROR and finding.role in (None, Role.CAUSE)


def _can_lead(finding: Finding, graph: CausalGraph) -> bool:
    return _is_error(finding) and graph.kind(finding.code) in ("cause", "umbrella")


def _is_long_ago(finding: Finding, log: Log) -> bool:
    """Whether the job ran on for long after the finding's evidence: findings closer to its end come first."""
    name, _, number = (finding.evidence[0].path if finding.evidence else "").rpartition(":")
    source = next((i for i, log_source in enumerate(log.sources) if log_source.name == name), None)
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
