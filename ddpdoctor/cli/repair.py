"""The corrected line, corrected until nothing is left: two mistakes on one line give one line to paste."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.collectors.launch import line_of_text
from ddpdoctor.doctor import judge
from ddpdoctor.facts.launch import Launch, Line
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report, Severity
from ddpdoctor.rules import Rule

__all__ = ["repaired"]

STEPS = 8
MOST_LINES = 20
"""Lines of a job that are corrected together; with more, each finding corrects its own mistake only."""


def repaired(report: Report, facts: Facts, rules: tuple[Rule, ...]) -> Report:
    """The report with every `fix_command` free of the line's other errors."""
    launch = facts.launch
    if launch is None or len(launch.lines) > MOST_LINES:
        return report
    found = tuple(_repaired(f, launch, facts, rules) if f.fix_command else f for f in report.findings)
    return replace(report, findings=found)


def _repaired(finding: Finding, launch: Launch, facts: Facts, rules: tuple[Rule, ...]) -> Finding:
    line = _line(finding, launch)
    if line is None or line.file is not None or finding.fix_command is None or not finding.code.startswith("LAUNCH"):
        return finding
    text, seen = finding.fix_command, {line.source}
    for _ in range(STEPS):
        if text in seen or "\n" in text.strip():
            break
        seen.add(text)
        again = line_of_text(text, _start(line), launch.version, line.cwd or "")
        outcome = judge(replace(facts, launch=replace(launch, lines=(replace(again, node=line.node),))), rules)
        better = next((f.fix_command for f in outcome.findings if _mends(f)), None)
        if better is None:
            break
        text = better
    return replace(finding, fix_command=text)


def _mends(finding: Finding) -> bool:
    return finding.worst is Severity.ERROR and finding.fix_command is not None and finding.code.startswith("LAUNCH")


def _line(finding: Finding, launch: Launch) -> Line | None:
    if len(launch.lines) == 1:
        return launch.lines[0]
    return next((x for x in launch.lines if x.node is not None and x.node == finding.where.node), None)


def _start(line: Line) -> dict[str, str]:
    """The environment around the line: the line sets its own variables again."""
    own = {v.name for layer in line.layers for v in layer.variables}
    return {name: value for name, value in line.environ.variables.items() if name not in own}
