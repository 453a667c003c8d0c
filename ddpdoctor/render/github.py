"""The report as workflow commands of GitHub Actions: annotations on the lines of a pull request."""

from __future__ import annotations

from ddpdoctor.findings import Finding, Report, Severity
from ddpdoctor.render.places import machine_place
from ddpdoctor.render.plain import printable

__all__ = ["write"]

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def write(report: Report) -> str:
    """One annotation per finding, one per failure, and the totals as a notice."""
    lines = [_annotation(COMMANDS[f.worst], _properties(f), _message(f)) for f in report.findings]
    lines += [_annotation("error", {"title": f"ddpdoctor: {c.code} crashed"}, c.error) for c in report.crashed]
    lines += [_annotation("error", {"title": "ddpdoctor could not"}, failure) for failure in report.failures]
    lines += [_annotation("warning", {"title": "unknown"}, text) for text in report.open_ends]
    totals = (
        f"{report.verdict.value}: {len(report.findings)} findings, {len(report.passed)} rules passed, "
        f"{len(report.skipped)} checks skipped"
    )
    lines.append(_annotation("notice", {"title": f"ddpdoctor {report.command}"}, totals))
    return "".join(line + "\n" for line in lines)


def _annotation(command: str, properties: dict[str, str], message: str) -> str:
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {told}::{_data(message)}"


def _properties(finding: Finding) -> dict[str, str]:
    where = finding.where
    told: dict[str, str] = {}
    if where.file is not None:
        told["file"] = where.file
        if where.line is not None:
            told["line"] = str(where.line)
            if where.column is not None:
                told["col"] = str(where.column)
    return told | {"title": f"{finding.code} {finding.name}"}


def _message(finding: Finding) -> str:
    place = machine_place(finding)
    lines = [f"{place}: {finding.text}" if place else finding.text]
    lines += [f"fix: {finding.fix}"] if finding.fix else []
    lines += [finding.fix_command] if finding.fix_command else []
    return "\n".join(lines)


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
