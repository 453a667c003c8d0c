"""Judges files: launch lines with their own environment, findings where the variable is set, ignore comments applied."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.app.autocorrect import MOST_LINES, Autocorrect
from ddpdoctor.app.imagined_jobs import (
    ImaginingRules,
    has_one_launcher_per_host,
    has_rank_variables,
    imagined_outcomes,
)
from ddpdoctor.app.job_corrections import JudgedFile, corrected
from ddpdoctor.app.lint_lines import AREAS, environ_of, rules_of_machines
from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.collectors.launch import LocalFiles
from ddpdoctor.collectors.launch_files import LaunchFiles, read_files, read_text
from ddpdoctor.engine import Outcome, extended, judge
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report, Severity, Where
from ddpdoctor.rules import Rule
from ddpdoctor.rules.environ.env009_to_011_505_torchrun_pet_variables import stray_pet_variable
from ddpdoctor.rules.environ.env012_014_to_017_master_address import master_addr_loopback
from ddpdoctor.rules.launch.scheduler.launch057_058_launcher_copies import launcher_per_task
from ddpdoctor.rules.launch.scheduler.launch061_to_063_083_scheduler_tasks import task_without_rank_variables
from ddpdoctor.system.budget import OverBudgetError, within_budget
from ddpdoctor.system.machine import Machine

__all__ = ["read", "with_files"]

JUDGE_SECONDS = 30.0
"""Time limit for judging the launch lines of one file, and for judging what all files together start."""


def read(paths: Sequence[str], machine: Machine, launch: Launch) -> LaunchFiles:
    """The launch lines of these files."""
    return read_files(paths, machine.environ, launch.version, os.getcwd(), LocalFiles())


def with_files(
    report: Report, facts: Facts, rules: tuple[Rule, ...], files: LaunchFiles, request: Request, machine: Machine
) -> Report:
    """The report with the findings of the files' lines, and with corrections of shell files that were proved."""
    rules = (*rules, *_more_rules(files, request))
    outcomes = _outcomes(files, facts, rules, request, corrects=True)
    for path, submission in files.submissions.items():
        if submission.shell is None:
            continue
        own = tuple(
            f for each in outcomes for f in each.findings if f.where.file == path and f.worst is not Severity.NOTE
        )
        if own and len(files.lines[path]) <= MOST_LINES:
            judged = JudgedFile(submission, files.lines[path], files.jobs[path], own)
            found = corrected(judged, _evaluator(path, facts, rules, request, machine), Autocorrect(facts, rules))
            by_old = dict(zip(own, found, strict=True))
            for outcome in outcomes:
                outcome.findings = [by_old.get(finding, finding) for finding in outcome.findings]
    return extended(report, outcomes, rules, tuple(files.failures))


def _more_rules(files: LaunchFiles, request: Request) -> tuple[Rule, ...]:
    """The causes of machines that these files may show."""
    lines = [line for lines in files.lines.values() for line in lines]
    return rules_of_machines(request, lines)


def _evaluator(
    path: str, facts: Facts, rules: tuple[Rule, ...], request: Request, machine: Machine
) -> Callable[[str], JudgedFile]:
    """Judges a file with another text."""
    assert facts.launch is not None
    version = facts.launch.version

    def evaluate(text: str) -> JudgedFile:
        files = read_text(path, text, machine.environ, version, os.getcwd(), LocalFiles())
        known = {(rule.code, rule.check) for rule in rules}
        more = tuple(rule for rule in _more_rules(files, request) if (rule.code, rule.check) not in known)
        outcomes = _outcomes(files, facts, (*rules, *more), request, corrects=False)
        found = (
            f for outcome in outcomes for f in outcome.findings if f.where.file == path and f.worst is not Severity.NOTE
        )
        return JudgedFile(files.submissions[path], files.lines[path], files.jobs[path], tuple(found))

    return evaluate


def _outcomes(
    files: LaunchFiles, facts: Facts, rules: tuple[Rule, ...], request: Request, *, corrects: bool
) -> list[Outcome]:
    """What the rules find in the files: as a whole, in their lines, and in the jobs that they start."""
    assert facts.launch is not None
    outcomes: list[Outcome] = []
    for path, lines in files.lines.items():
        judged = functools.partial(_judged, lines, facts, facts.launch, rules, corrects=corrects)
        for each in _within_budget(judged, path, files):
            each.findings = [f for f in each.findings if not _is_silenced(f, lines, files)]
            outcomes.append(each)
    for outcome in outcomes:
        outcome.findings = [finding for finding in outcome.findings if not _is_refuted(finding, files)]
    known = [finding for outcome in outcomes for finding in outcome.findings]
    comparing = [rule for rule in rules_for(request, AREAS) if "nodes" in (*rule.needs, *rule.wants)]
    has_pods = any(submission.domains for submission in files.submissions.values())
    of_files = tuple(rules_for(request, (*AREAS, "net") if has_pods else AREAS))
    imagining = ImaginingRules(rules, tuple(comparing), of_files)
    explains = {rule.code: rule.explains for rule in of_files if "submission" in rule.needs}  # wrong readings of lines
    explained: set[tuple[str | None, str]] = set()
    for outcome in _within_budget(lambda: imagined_outcomes(files, facts, imagining, known), "job files", files):
        outcome.findings = [f for f in outcome.findings if not _is_silenced(f, (), files)]
        outcomes.append(outcome)
        explained |= {(f.where.file, code) for f in outcome.findings for code in explains.get(f.code, ())}
    for outcome in outcomes:
        outcome.findings = [f for f in outcome.findings if (f.where.file, f.code) not in explained]
    return outcomes


def _within_budget(work: Callable[[], Iterable[Outcome]], name: str, files: LaunchFiles) -> list[Outcome]:
    """The outcomes, or a failure that says why there are none."""
    try:
        return within_budget(lambda: list(work()), JUDGE_SECONDS)
    except OverBudgetError as error:
        files.failures.append(f"{name}: not judged: {error}")
        return []


def _is_refuted(finding: Finding, files: LaunchFiles) -> bool:
    """Whether executing the file shows that a finding about its text alone is wrong."""
    path = finding.where.file
    if path is None:
        return False
    if finding.code == launcher_per_task.code:
        return has_one_launcher_per_host(files, path)
    if finding.code == master_addr_loopback.code:
        return _is_on_one_machine(files, path)
    return finding.code == task_without_rank_variables.code and has_rank_variables(files, path)


def _is_on_one_machine(files: LaunchFiles, path: str) -> bool:
    """Whether all nodes of a Compose file share the network of one machine, where a loopback address is right."""
    submission = files.submissions.get(path)
    steps = () if submission is None or not submission.compose_hosts else submission.steps
    return bool(steps) and len({host for step in steps for host in step.hosts}) == 1


def _judged(
    lines: tuple[LaunchLine, ...], facts: Facts, launch: Launch, rules: Iterable[Rule], *, corrects: bool
) -> Iterator[Outcome]:
    """Rules for lines see all lines of a file; rules for the environment see one line at a time."""
    rules = tuple(rules)
    with_environ = tuple(rule for rule in rules if "environ" in (*rule.needs, *rule.wants))
    others = tuple(rule for rule in rules if rule not in with_environ)
    in_pod = tuple(
        each for each in with_environ if each.code != stray_pet_variable.code
    )  # a manifest sets it on purpose
    autocorrect = Autocorrect(facts, rules)
    of_file = replace(launch, lines=lines)
    together = judge(replace(facts, launch=of_file), others)
    if corrects and len(lines) <= MOST_LINES:
        together.findings = [autocorrect.finding(finding, of_file) for finding in together.findings]
    yield together
    for line in lines:
        alone = replace(launch, lines=(line,))
        meant = with_environ if line.pod is None else in_pod
        outcome = judge(replace(facts, launch=alone, environ=environ_of(alone)), meant)
        found = [autocorrect.finding(finding, alone) if corrects else finding for finding in outcome.findings]
        outcome.findings = [_placed(each, line) for each in found]
        yield outcome


def _placed(finding: Finding, line: LaunchLine) -> Finding:
    """A finding about a variable that the file sets is reported where it is set, not at the line that inherits it."""
    if not finding.code.startswith("ENV"):
        return finding
    own = {v.name for layer in line.layers for v in layer.variables}
    names = {each.path.rpartition(".")[2] for each in finding.evidence}
    mark = next((mark for name, mark in sorted(line.places.items()) if name in names - own), None)
    return (
        finding if mark is None else replace(finding, where=Where(file=line.file, line=mark.line, column=mark.column))
    )


def _is_silenced(finding: Finding, lines: tuple[LaunchLine, ...], files: LaunchFiles) -> bool:
    file, row = finding.where.file, finding.where.line
    if file is None or row is None:
        return False
    rows = {row}
    for line in lines:
        last = line.first_line + line.source.count("\n")
        if not line.marks and line.first_line <= row <= last:
            rows.add(last)  # no comment can follow a backslash: that of the last row applies to the whole line
    return files.silences(finding.code, file, rows)
