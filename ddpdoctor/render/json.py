"""The report as JSON: schema `ddpdoctor.report/1` (report.schema.json beside this file)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ddpdoctor import __version__
from ddpdoctor.examined import ExaminedInput, ExaminedJob, RunDifference
from ddpdoctor.findings import (
    Certainty,
    Culprit,
    Evidence,
    Finding,
    NodeCommand,
    Relation,
    Report,
    Role,
    Severity,
    Where,
)
from ddpdoctor.render.plain import json_printable

__all__ = ["as_dict", "findings_in", "write"]

SCHEMA = "ddpdoctor.report/1"

OF_ONE_HOST = ("check", "hang")
"""Commands whose findings are about the machine on which they ran."""

DOCTOR = "ddpdoctor"
"""Used as the code if ddpdoctor itself failed, not one of its rules."""


def write(report: Report) -> str:
    """The report, indented, with a newline at the end."""
    return json_printable(json.dumps(as_dict(report), indent=2, ensure_ascii=False)) + "\n"


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON values. This format is stable; the types in findings.py may change."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "ddpdoctor", "version": __version__},
        "command": report.command,
        "host": report.host,
        "started_at": report.started_at,
        "seconds": report.seconds,
        "verdict": report.verdict.value,
        "findings": [_finding(f) for f in report.findings],
        "passed": list(report.passed),
        "skipped": [{"code": s.code, "reason": s.reason} for s in report.skipped],
        "crashed": [
            *({"code": c.code, "error": c.error} for c in report.crashed),
            *({"code": DOCTOR, "error": failure} for failure in report.failures),
        ],
        "inputs": [_input(source) for source in report.inputs],
        "jobs": [_job(job) for job in report.jobs],
        **({"notes": list(report.notes)} if report.notes else {}),
        **_comparison(report),
    }


def _comparison(report: Report) -> dict[str, Any]:
    """What only the failed run has; nothing without a comparison with good runs."""
    if not report.compared_with:
        return {}
    names = RunDifference.__dataclass_fields__
    rows = [{name: getattr(difference, name) for name in names} for difference in report.differences]
    return {
        "compared_with": report.compared_with,
        "differences": [{**row, "hosts": list(row["hosts"])} for row in rows],
    }


def _input(examined: ExaminedInput) -> dict[str, Any]:
    return {
        "path": examined.path,
        "kind": examined.kind,
        "understood": examined.is_understood,
        "lines": examined.lines,
        "ranks": list(examined.ranks),
        "job": examined.job,
        "reason": examined.reason,
        "left_out": list(examined.left_out),
    }


def _job(job: ExaminedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "outcome": job.outcome,
        "verdict": job.verdict.value,
        "ranks": list(job.ranks),
        "hosts": list(job.hosts),
        "first": job.first,
        "last": job.last,
        "exit": job.exit_code,
        "open_end": job.open_end or None,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.worst.value,
        "role": finding.role.value if finding.role else "cause",
        "message": finding.text,
        "why": finding.why,
        "fix": finding.fix,
        "fix_command": finding.fix_command,
        "where": {name: getattr(finding.where, name) for name in Where.__dataclass_fields__},
        "ranks": list(finding.ranks),
        **({"who": _who(finding.culprit)} if finding.culprit is not None else {}),
        "evidence": [{"path": e.path, "seen": e.seen, "expected": e.expected} for e in finding.evidence],
        "caused_by": finding.caused_by,
        "help": finding.help,
        "certainty": finding.certainty.value,
        "candidates": list(finding.candidates),
        "quote": finding.quote or None,
        "fix_commands": [{"on": command.on, "command": command.command} for command in finding.commands],
        "job": finding.job,
        "group": finding.group,
    }


def _who(culprit: Culprit) -> dict[str, Any]:
    found = {name: getattr(culprit, name) for name in Culprit.__dataclass_fields__}
    return {**found, "relation": culprit.relation.value}


def findings_in(text: str) -> tuple[Finding, ...]:
    """The findings of a report that `write` wrote; those about one machine with its name.

    Raises:
        ValueError: it is not JSON, or not such a report; the message says what is wrong.
    """
    report = json.loads(text)
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"not a report of schema {SCHEMA}")
    try:
        host = report["host"] if report["command"] in OF_ONE_HOST else None
        return tuple(_saved_finding(each, host) for each in report["findings"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a complete report: {error!s:.100}") from None


def _saved_finding(each: dict[str, Any], host: str | None) -> Finding:
    words: Any = {name: str(each[name]) for name in ("message", "fix", "code", "name", "why", "help")}
    where = Where(**{name: each["where"].get(name) for name in Where.__dataclass_fields__})
    return Finding(
        **words,
        evidence=tuple(Evidence(str(e["path"]), str(e["seen"]), str(e["expected"])) for e in each["evidence"]),
        fix_command=each["fix_command"],
        where=where if where.host is not None else replace(where, host=host),
        ranks=tuple(int(rank) for rank in each["ranks"]),
        severity=Severity(each["severity"]),
        role=Role(each["role"]),
        caused_by=each["caused_by"],
        certainty=Certainty(each.get("certainty", "certain")),
        candidates=tuple(str(code) for code in each.get("candidates", ())),
        quote=str(each.get("quote") or ""),
        job=each.get("job"),
        group=each.get("group"),
        culprit=_saved_culprit(each.get("who")),
        fix_commands=tuple(NodeCommand(str(c["on"]), str(c["command"])) for c in each.get("fix_commands", ())),
    )


def _saved_culprit(who: dict[str, Any] | None) -> Culprit | None:
    if not who:
        return None
    names = ("rank", "local_rank", "node_rank", "host", "pid", "gpu")
    known: Any = {name: who.get(name) for name in names}
    return Culprit(Relation(who["relation"]), str(who["text"]), **known)
