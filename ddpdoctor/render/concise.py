"""The report as one line per finding, for editors, grep and scripts: `file:line:column: CODE message`."""

from __future__ import annotations

from ddpdoctor.findings import Finding, Report, Role
from ddpdoctor.render.places import machine_place
from ddpdoctor.render.plain import printable

__all__ = ["write"]


def write(report: Report, *, verbose: bool = False) -> str:
    """Findings in the order of the report, then failures; harmless findings with `verbose` only."""
    shown = [finding for finding in report.findings if verbose or finding.role is not Role.NOISE]
    lines = [f"{_place(each, report)}: {each.code} {each.text}" for each in shown]
    lines += [f"{report.host or 'ddpdoctor'}: {each.code} rule crashed: {each.error}" for each in report.crashed]
    lines += [f"error: {failure}" for failure in report.failures]
    lines += [f"error: {each.path}: {each.reason}" for each in report.not_understood]
    lines += [f"unknown: {text}" for text in report.open_ends]
    return "".join(_one_line(line) + "\n" for line in lines)


def _place(finding: Finding, report: Report) -> str:
    """The first that is known of: the file; the machine, rank or GPU; the launch command; the host of the report."""
    where = finding.where
    if where.file is not None:
        return ":".join([where.file, *(str(n) for n in (where.line, where.column) if n is not None)])
    place = machine_place(finding)
    if not place and where.column is not None:
        return f"<launch>:1:{where.column}"
    return place.removeprefix("host ") or report.host or "ddpdoctor"


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
