"""The report as SARIF 2.1.0, for code scanning pages and editors."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from ddpdoctor import __version__
from ddpdoctor.findings import Finding, Report, Severity
from ddpdoctor.render.places import machine_place
from ddpdoctor.render.plain import json_printable

__all__ = ["write"]

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def write(report: Report) -> str:
    """One run: a rule for each code that was found, a result for each finding, a notification for each failure."""
    rules = _rules(report.findings)
    run = {
        "tool": {"driver": {"name": "ddpdoctor", "version": __version__, "rules": list(rules.values())}},
        "invocations": [_invocation(report)],
        "automationDetails": {"id": f"ddpdoctor/{report.command}/"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(f, list(rules).index(f.code)) for f in report.findings],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json_printable(json.dumps(log, indent=2, ensure_ascii=False)) + "\n"


def _rules(findings: tuple[Finding, ...]) -> dict[str, dict[str, Any]]:
    rules: dict[str, dict[str, Any]] = {}
    for finding in sorted(findings, key=lambda f: -f.worst.weight):
        rules.setdefault(finding.code, _rule(finding))
    return rules


def _rule(finding: Finding) -> dict[str, Any]:
    help_text = "\n\n".join(text for text in (finding.why, finding.fix) if text) or finding.name
    return {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.name.split("-")),
        "shortDescription": {"text": finding.name.replace("-", " ")},
        "fullDescription": {"text": finding.why or finding.name},
        "help": {"text": help_text},
        "defaultConfiguration": {"level": LEVELS[finding.worst]},
        "properties": {"tags": ["distributed"], "page": finding.help},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    lines = [finding.text, *([f"fix: {finding.fix}"] if finding.fix else [])]
    if finding.fix_command:
        lines.append(finding.fix_command)
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.worst],
        "message": {"text": "\n".join(lines)},
        "locations": _locations(finding),
        "partialFingerprints": {"ddpdoctor/v1": _fingerprint(finding)},
        "properties": {"role": finding.role.value if finding.role else "cause", "caused_by": finding.caused_by},
    }


def _locations(finding: Finding) -> list[dict[str, Any]]:
    location: dict[str, Any] = {}
    where = finding.where
    if where.file is not None:
        path = quote(where.file, safe="/", errors="replace")
        uri = f"file://{path}" if path.startswith("/") else path
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}}
        region = {"startLine": where.line, "startColumn": where.column if where.line else None}
        known = {name: number for name, number in region.items() if number is not None and number >= 1}
        if known:
            location["physicalLocation"]["region"] = known
    if place := machine_place(finding):
        location["logicalLocations"] = [{"fullyQualifiedName": place, "kind": "resource"}]
    return [location] if location else []


def _fingerprint(finding: Finding) -> str:
    """The same value for the same fault in the same place, even if its line or the values seen change."""
    what = f"{finding.code}\0{finding.where.file or ''}\0{machine_place(finding)}"
    return hashlib.sha256(what.encode("utf-8", "replace")).hexdigest()[:32]


def _invocation(report: Report) -> dict[str, Any]:
    failed = [f"{c.code} crashed: {c.error}" for c in report.crashed] + list(report.failures)
    skipped = [f"{s.code} skipped: {s.reason}" for s in report.skipped]
    return {
        "executionSuccessful": not failed,
        "startTimeUtc": report.started_at,
        "toolExecutionNotifications": [
            *({"level": "error", "message": {"text": text}} for text in failed),
            *({"level": "note", "message": {"text": text}} for text in skipped),
        ],
    }
