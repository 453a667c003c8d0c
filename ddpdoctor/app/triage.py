"""What `triage`, `hang` and `run` share: from inputs to a report about them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpdoctor.app.excerpts import with_code_of_tracebacks
from ddpdoctor.app.facts_source import UnreadableError, load_facts, text_of
from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.standard_input import on_disk
from ddpdoctor.collectors.hang.artifacts import hang_artifacts
from ddpdoctor.collectors.log.read_logs import collect
from ddpdoctor.engine import examine, extended, judge, retold
from ddpdoctor.facts.log import GpuAddress, InputKind, Log
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding, Report
from ddpdoctor.logs.merged import merged
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.render.json import findings_in
from ddpdoctor.rules import AREAS, Rule
from ddpdoctor.rules.views import hang_rules, log_rules

__all__ = ["triaged"]


def triaged(paths: Iterable[str], request: Request, *, started: float, command: str = "triage") -> tuple[Report, Facts]:
    """The report about these files, folders and standard input (`-`), and the facts that it rests on."""
    known = rules_for(request, tuple(AREAS.values()))
    rules = log_rules(known)
    with on_disk(paths) as files:
        report, facts = _triaged(files, rules, known, command, started)
    report = with_code_of_tracebacks(report, facts.log) if facts.log is not None else report
    return replace(report, findings=tuple(map(_without_secrets, report.findings))), facts


def _without_secrets(finding: Finding) -> Finding:
    """The finding without tokens and passwords that a log printed."""
    return replace(
        finding,
        message=redact(finding.message),
        quote=redact(finding.quote),
        about=redact(finding.about),
        undetermined=redact(finding.undetermined),
        evidence=tuple(replace(each, seen=redact(each.seen)) for each in finding.evidence),
    )


def _triaged(
    paths: Sequence[str], rules: tuple[Rule, ...], known: tuple[Rule, ...], command: str, started: float
) -> tuple[Report, Facts]:
    signatures = [signature for each in rules for signature in each.signatures]
    log = collect(paths, signatures, sys.stdin.buffer if sys.stdin else None)
    saved, unread = _saved(log)
    log = replace(merged(log, (each.log for each in saved if each.log is not None)), seats=_seats(saved))
    facts = Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        hostname=socket.gethostname().partition(".")[0],
        log=log,
        hang=hang_artifacts(log, [each.hang for each in saved if each.hang is not None]),
    )
    gaps = (*log.gaps, *(facts.hang.gaps if facts.hang is not None else ()))
    saved_findings, unread_reports = _saved_findings(log)
    failures = tuple(f"read {problem}" for problem in (*(gap.reason for gap in gaps), *unread, *unread_reports))
    if facts.hang is None:
        report = examine(facts, rules, command=command, started=started, failures=failures)
        return retold(report, saved_findings), facts
    # A cause that the ranks' dumps show replaces the same cause found in a log line: dumps prove more.
    dumps = judge(facts, hang_rules(known))
    shown = {finding.code for finding in dumps.findings}
    rules = tuple(each for each in rules if each.code not in shown)
    report = examine(facts, rules, command=command, started=started, failures=failures)
    return retold(extended(report, [dumps], known), saved_findings), facts


def _saved(log: Log) -> tuple[list[Facts], list[str]]:
    """The facts that `ddpdoctor collect` wrote, among the sources of a log, and why some could not be read."""
    found, problems = [], []
    for source in log.sources:
        if source.kind is InputKind.FACTS:
            try:
                found.append(load_facts(Path(source.name)))
            except UnreadableError as error:
                problems.append(str(error))
    return found, problems


def _seats(saved: Iterable[Facts]) -> tuple[GpuAddress, ...]:
    """Where the GPUs of the machines sit whose facts were collected."""
    return tuple(
        GpuAddress(each.hostname, device.bus_id.partition(".")[0], device.index)
        for each in saved
        if each.gpu is not None
        for device in each.gpu.devices
        if device.bus_id is not None
    )


def _saved_findings(log: Log) -> tuple[list[Finding], list[str]]:
    """The findings of saved reports among the sources of a log, and why some could not be read."""
    found: list[Finding] = []
    problems = []
    for source in log.sources:
        if source.kind is InputKind.REPORT:
            try:
                found += findings_in(text_of(Path(source.name)))
            except (UnreadableError, ValueError) as error:
                problems.append(str(error) if isinstance(error, UnreadableError) else f"{source.name}: {error}")
    return found, problems
