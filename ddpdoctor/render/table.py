"""The report as a person reads it on a terminal: worst first, and what could not be looked at."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from ddpdoctor.findings import Finding, Report

__all__ = ["write"]

COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def write(report: Report, *, width: int = 100, colour: bool = False) -> str:
    """Findings, then one line of totals, at most `width` columns wide."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    for finding in report.findings:
        _show(console, finding)
    console.print(_totals(report), soft_wrap=False)
    return out.getvalue()


def _show(console: Console, finding: Finding) -> None:
    head = Text()
    head.append(f"{finding.worst.value} {finding.code} ", style=COLOURS[finding.worst.value])
    head.append(finding.message)
    console.print(head)
    if finding.fix:
        console.print(Text(f"  fix: {finding.fix}"))
    if finding.fix_command:
        console.print(Text(finding.fix_command, style="bold"), soft_wrap=True)


def _totals(report: Report) -> Text:
    return Text(f"{report.verdict.value}: {len(report.findings)} findings, {len(report.passed)} rules passed")
