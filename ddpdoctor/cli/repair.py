"""The corrected line, corrected until nothing is left: two mistakes on one line give one line to paste."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpdoctor.collectors.launch import line_of_text
from ddpdoctor.doctor import judge
from ddpdoctor.facts.launch import Launch, Line
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report, Severity
from ddpdoctor.rules import Rule
from ddpdoctor.rules.launch.pointing import corrected, remove
from ddpdoctor.rules.launch.pointing import replace as substitute
from ddpdoctor.rules.launch.pointing import where as place

__all__ = ["repaired"]

STEPS = 8
MOST_LINES = 20
"""Lines of a job that are corrected together; with more, each finding corrects its own mistake only."""
_SETS = re.compile(r"(?:unset (?P<old>\w+)(?:; )?)?(?:export (?P<word>(?P<new>\w+)=[^\s;]+))?")
"""The commands of the environment's rules: take a variable away, give it another value, or rename it."""


def repaired(report: Report, facts: Facts, rules: tuple[Rule, ...]) -> Report:
    """The report with every `fix_command` free of the line's other errors."""
    launch = facts.launch
    if launch is None or len(launch.lines) > MOST_LINES:
        return report
    found = tuple(_repaired(f, launch, facts, rules) if f.fix_command else f for f in report.findings)
    return replace(report, findings=found)


def _repaired(finding: Finding, launch: Launch, facts: Facts, rules: tuple[Rule, ...]) -> Finding:
    line = _line(finding, launch)
    if line is None or line.file is not None or finding.fix_command is None:
        return finding
    if finding.code.startswith("ENV"):
        return _reassigned(finding, line)
    if not finding.code.startswith("LAUNCH"):
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


def _reassigned(finding: Finding, line: Line) -> Finding:
    """A finding about a variable that the line sets: its place on the line, and the line without it, or with it corrected."""
    name = finding.evidence[0].path.removeprefix("environ.variables.") if finding.evidence else ""
    words = [v.word for layer in line.layers for v in layer.variables if v.name == name and v.word.assignment]
    if not words or len(set(words)) > 1 or words[0] not in line.argv:
        return finding
    match = _SETS.fullmatch(finding.fix_command or "")
    if match is None or (match["old"] or match["new"]) != name:
        return finding
    right = match["word"]
    at = line.argv.index(words[0])
    if right is None and at and line.argv[at - 1].text.startswith("-"):
        return finding  # the value of an option such as mpirun's -x
    edits = remove(line, words[0]) if right is None else [substitute(words[0], right)]
    command = corrected(line, edits)
    if command is None:
        return finding
    return replace(finding, fix_command=command, where=place(line, words[0]))


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
