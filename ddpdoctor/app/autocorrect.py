"""The corrected line, corrected until nothing is left: two mistakes on one line give one line to paste."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpdoctor.app.lint_lines import environ_of
from ddpdoctor.engine import judge
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, NodeCommand, Report, Severity
from ddpdoctor.launch.line import again
from ddpdoctor.rules import Rule
from ddpdoctor.rules.launch.pointing import corrected, remove, revalue
from ddpdoctor.rules.launch.pointing import replace_word as substitute
from ddpdoctor.rules.launch.pointing import where as place

__all__ = ["MOST_LINES", "meant", "repaired", "without_other_errors"]

STEPS = 8
MOST_LINES = 20
"""Lines of a job that are corrected together; with more, each finding corrects its own mistake only."""
_SETS = re.compile(r"(?:unset (?P<old>\w+)(?:; )?)?(?:export (?P<word>(?P<new>\w+)=[^\s;]+))?")
"""The commands of the environment's rules: take a variable away, give it another value, or rename it."""
_PORT = re.compile(r"export MASTER_PORT=(\d+)")


def repaired(report: Report, facts: Facts, rules: tuple[Rule, ...]) -> Report:
    """The report with every `fix_command` free of the line's other errors."""
    launch = facts.launch
    if launch is None or len(launch.lines) > MOST_LINES:
        return report
    findings = (_in_report(f, launch, facts, rules) for f in report.findings)
    return replace(report, findings=tuple(map(_at_its_node, findings) if len(launch.nodes) > 1 else findings))


def _at_its_node(finding: Finding) -> Finding:
    """A finding about one of several nodes' lines, its command as that of this node."""
    if finding.fix_command is None or finding.fix_commands or finding.where.node is None:
        return finding
    return replace(finding, fix_commands=(NodeCommand(f"node {finding.where.node}", finding.fix_command),))


def _in_report(finding: Finding, launch: Launch, facts: Facts, rules: tuple[Rule, ...]) -> Finding:
    line = _line(finding, launch)
    return finding if line is None else without_other_errors(_with_port(finding, line), line, facts, rules)


def _with_port(finding: Finding, line: Line) -> Finding:
    """Another port for the master, in the line's own option: launchers overwrite the variable."""
    match = _PORT.fullmatch(finding.fix_command or "")
    starter = line.starter
    if match is None or starter is None:
        return finding
    given = starter.given("master_port") or starter.given("main_process_port")
    endpoint = starter.given("rdzv_endpoint")
    option, value = given, match[1]
    if endpoint is not None and line.plan is not None:
        option, value = endpoint, f"{line.plan.host}:{match[1]}"
    if option is None:
        return finding
    return replace(finding, fix_command=corrected(line, [revalue(option, value)]), where=place(line, option.value_word))


def without_other_errors(finding: Finding, line: Line, facts: Facts, rules: tuple[Rule, ...]) -> Finding:
    """A finding of one line, its `fix_command` corrected as long as rules see errors in it and know better."""
    finding = _reassigned(finding, line)
    text, seen = finding.fix_command, {line.source}
    if facts.launch is None or not _is_line(finding):
        return finding
    for _ in range(STEPS):
        if text is None or text in seen or ("\n" in text.strip() and "\n" not in line.source):
            break
        seen.add(text)
        finding = replace(finding, fix_command=text)
        text = _better(again(line, text, facts.launch.version), finding.code, facts, facts.launch, rules)
    return finding


def meant(line: Line, facts: Facts, rules: tuple[Rule, ...]) -> Line:
    """The line that would do what this one was to do: corrected as long as rules see errors in it and know better."""
    assert facts.launch is not None
    seen = {line.source}
    for _ in range(STEPS):
        text = _better(line, "", facts, facts.launch, rules)
        if text is None or text in seen:
            break
        seen.add(text)
        line = again(line, text, facts.launch.version)
    return line


def _better(line: Line, code: str, facts: Facts, launch: Launch, rules: tuple[Rule, ...]) -> str | None:
    """The line without its first error, or mistake of this code, that a rule can correct."""
    alone = replace(launch, lines=(line,))
    environ = facts.environ if line.file is None else environ_of(alone)
    outcome = judge(replace(facts, launch=alone, environ=environ), rules)
    errors = (_reassigned(f, line) for f in outcome.findings if f.worst is Severity.ERROR or f.code == code)
    return next((f.fix_command for f in errors if _is_line(f)), None)


def _is_line(finding: Finding) -> bool:
    """The command is a launch line, not one that changes the shell's variables or the machine."""
    command = finding.fix_command
    of_a_line = finding.code.startswith(("LAUNCH", "ENV")) or any(
        e.path.startswith("launch.") for e in finding.evidence
    )
    return command is not None and of_a_line and not _SETS.fullmatch(command)


def _reassigned(finding: Finding, line: Line) -> Finding:
    """A finding about a variable that the line sets: its place on the line, and the line without it, or with it corrected."""
    name = finding.evidence[0].path.removeprefix("environ.variables.") if finding.evidence else ""
    words = [v.word for layer in line.layers for v in layer.variables if v.name == name and v.word.assignment]
    if not words or len(set(words)) > 1 or words[0] not in line.argv or not finding.code.startswith("ENV"):
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


def _line(finding: Finding, launch: Launch) -> Line | None:
    if len(launch.lines) == 1:
        return launch.lines[0]
    return next((x for x in launch.lines if x.node is not None and x.node == finding.where.node), None)
