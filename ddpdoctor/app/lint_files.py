"""Judges files: launch lines with their own environment, findings where the variable is set, ignore comments applied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.app.autocorrect import MOST_LINES, Autocorrect
from ddpdoctor.app.imagined_jobs import (
    ImaginingRules,
    has_one_launcher_per_host,
    has_rank_variables,
    imagined_outcomes,
)
from ddpdoctor.app.lint_lines import AREAS, environ_of, rules_of_machines
from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.collectors.launch import LocalFiles
from ddpdoctor.collectors.launch_files import LaunchFiles, read_files
from ddpdoctor.engine import Outcome, extended, judge
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report, Where
from ddpdoctor.rules import Rule
from ddpdoctor.rules.environ.env009_to_011_505_torchrun_pet_variables import stray_pet_variable
from ddpdoctor.rules.launch.scheduler.launch057_058_launcher_copies import launcher_per_task
from ddpdoctor.rules.launch.scheduler.launch061_to_063_083_scheduler_tasks import task_without_rank_variables
from ddpdoctor.system.machine import Machine

__all__ = ["read", "with_files"]


def read(paths: Sequence[str], machine: Machine, launch: Launch) -> LaunchFiles:
    """The launch lines of these files."""
    return read_files(paths, machine.environ, launch.version, os.getcwd(), LocalFiles())


def with_files(report: Report, facts: Facts, rules: tuple[Rule, ...], files: LaunchFiles, request: Request) -> Report:
    """The report with the findings of the files' lines."""
    assert facts.launch is not None
    rules += rules_of_machines(request, [line for lines in files.lines.values() for line in lines])
    outcomes = []
    for lines in files.lines.values():
        for each in _judged(lines, facts, facts.launch, rules):
            each.findings = [f for f in each.findings if not _is_silenced(f, lines, files)]
            outcomes.append(each)
    for outcome in outcomes:
        outcome.findings = [finding for finding in outcome.findings if not _is_refuted(finding, files)]
    known = [finding for outcome in outcomes for finding in outcome.findings]
    comparing = [rule for rule in rules_for(request, AREAS) if "nodes" in (*rule.needs, *rule.wants)]
    imagining = ImaginingRules(rules, tuple(comparing), tuple(rules_for(request, AREAS)))
    for outcome in imagined_outcomes(files, facts, imagining, known):
        outcome.findings = [f for f in outcome.findings if not _is_silenced(f, (), files)]
        outcomes.append(outcome)
    return extended(report, outcomes, rules, tuple(files.failures))


def _is_refuted(finding: Finding, files: LaunchFiles) -> bool:
    """Whether executing the file shows that a finding about its text alone is wrong."""
    path = finding.where.file
    if path is None:
        return False
    if finding.code == launcher_per_task.code:
        return has_one_launcher_per_host(files, path)
    return finding.code == task_without_rank_variables.code and has_rank_variables(files, path)


def _judged(lines: tuple[LaunchLine, ...], facts: Facts, launch: Launch, rules: Iterable[Rule]) -> Iterator[Outcome]:
    """Rules for lines see all lines of a file; rules for the environment see one line at a time."""
    rules = tuple(rules)
    with_environ = tuple(each for each in rules if "environ" in (*each.needs, *each.wants))
    others = tuple(each for each in rules if each not in with_environ)
    in_pod = tuple(
        each for each in with_environ if each.code != stray_pet_variable.code
    )  # a manifest sets it on purpose
    autocorrect = Autocorrect(facts, rules)
    of_file = replace(launch, lines=lines)
    together = judge(replace(facts, launch=of_file), others)
    if len(lines) <= MOST_LINES:
        together.findings = [autocorrect.finding(each, of_file) for each in together.findings]
    yield together
    for line in lines:
        alone = replace(launch, lines=(line,))
        meant = with_environ if line.pod is None else in_pod
        outcome = judge(replace(facts, launch=alone, environ=environ_of(alone)), meant)
        outcome.findings = [_placed(autocorrect.finding(each, alone), line) for each in outcome.findings]
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
