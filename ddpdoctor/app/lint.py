"""`ddpdoctor lint`: launch commands and files, judged without starting anything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.lint_lines import AREAS, facts_of, rules_of, rules_of_machines, with_machines
from ddpdoctor.app.request import UsageError, seconds_left
from ddpdoctor.app.standard_source import ANSWER_SECONDS, on_disk
from ddpdoctor.engine import examine
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.torchrun_options import OLDEST, version_of
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.collectors.script import Scripts
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report
    from ddpdoctor.rules import Rule

__all__ = ["LintInputs", "lint_inputs"]

FILE_SECONDS = 30.0


@dataclass(frozen=True)
class LintInputs:
    """What is judged besides the launch command of the request: files, launch commands of nodes, and torch's version."""

    files: Sequence[str] = ()
    nodes: Sequence[str] = ()
    torch: str | None = None
    proves_corrections: bool = False
    """Whether the corrected scripts are judged as well, so that safe corrections are known."""


def lint_inputs(request: Request, inputs: LintInputs) -> tuple[Report, Facts]:
    """The report about all inputs, with the source lines of its findings, and the facts of the launch commands in them.

    Raises:
        UsageError: nothing to judge, or no such torch.
    """
    from ddpdoctor.app.excerpts import with_excerpts
    from ddpdoctor.app.lint_examined import folder_inputs, line_inputs, subject_of
    from ddpdoctor.findings import seconds_since

    started = time.monotonic()
    _check(request, inputs)
    with on_disk(inputs.files, seconds_left(request, ANSWER_SECONDS)) as (paths, original):
        named, others = _sorted(paths)
        inside = [path for files in named.others.values() for path in files if _may_hold_launches(path)]
        facts, failures = _facts(request, inputs)
        rules = rules_of(request) if request.launch or inputs.nodes or others or inside or request.facts else ()
        report = examine(facts, rules, command="lint", started=started, failures=failures)
        report = _with_launch_commands(report, facts, rules, request)
        given = line_inputs(facts.launch, request.facts, failures)
        if facts.launch is None:
            facts = replace(facts, launch=Launch())
        launch = facts.launch
        assert launch is not None
        if others or inside:
            report, facts = _with_files(report, facts, launch, rules, (others, inside), request)
        report, skipped = _with_scripts(report, named, facts, request, inputs)
        more = folder_inputs(named.others, [source.path for source in report.inputs], *skipped)
        report = replace(report, inputs=(*given, *report.inputs, *more))
        report = original(with_excerpts(report, facts.launch))
    seconds = seconds_since(started)
    return replace(report, subject=subject_of(launch, report.inputs), seconds=seconds), facts


def _sorted(paths: Sequence[str]) -> tuple[Scripts, list[str]]:
    """The scripts, notebooks and folders among the paths, searched; and the other files."""
    from ddpdoctor.collectors.script import find, is_script

    scripts = [path for path in paths if is_script(path)]
    return find(scripts), [path for path in paths if path not in scripts]


def _may_hold_launches(path: str) -> bool:
    from ddpdoctor.collectors.launch_files import may_hold_launches

    return may_hold_launches(path)


def _with_scripts(
    report: Report, named: Scripts, facts: Facts, request: Request, inputs: LintInputs
) -> tuple[Report, tuple[list[str], list[str]]]:
    """The report with what is found in scripts; and, of folders, the files without training and those that are not Python."""
    assert facts.launch is not None
    lines = facts.launch.lines
    if not named.paths and not named.failures and not any(line.script and line.script.exists for line in lines):
        return report, ([], [])
    from ddpdoctor.app.lint_scripts import judge_until_interrupted

    judged = judge_until_interrupted(named, lines, facts, request, proves_corrections=inputs.proves_corrections)
    return judged.added_to(report), (judged.passed_over, judged.broken)


def _check(request: Request, inputs: LintInputs) -> None:
    version = None if inputs.torch is None else version_of(inputs.torch)
    if inputs.torch is not None and (version is None or version < OLDEST):
        raise UsageError(
            f"--torch {inputs.torch!r:.40}: expected a version such as 2.15 or 2.4.1, {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    if not request.launch and not inputs.nodes and not inputs.files and request.facts is None:
        raise UsageError("nothing to judge: give FILEs, --node 'LINE', or a launch line after --")


def _facts(request: Request, inputs: LintInputs) -> tuple[Facts, tuple[str, ...]]:
    """The facts of the launch commands, and why saved ones could not be read."""
    if request.facts is None:
        return facts_of(request, inputs.nodes, inputs.torch), ()
    from ddpdoctor.app.facts_source import facts_for

    return facts_for(request, AREAS)


def _with_launch_commands(report: Report, facts: Facts, rules: tuple[Rule, ...], request: Request) -> Report:
    """The report with the causes of machines that the launch commands show, its corrections free of other errors."""
    if facts.launch is not None and facts.launch.lines:
        report = with_machines(report, facts, rules_of_machines(request, facts.launch.lines))
    if not rules:
        return report
    from ddpdoctor.app.autocorrect import autocorrected

    return autocorrected(report, facts, rules)


def _with_files(
    report: Report,
    facts: Facts,
    launch: Launch,
    rules: tuple[Rule, ...],
    paths: tuple[Sequence[str], Sequence[str]],
    request: Request,
) -> tuple[Report, Facts]:
    """The report with what is found in shell files and manifests, and the facts with their launch commands.

    Args:
        paths: the files that were named, and those of folders, of which only the ones with a launch are told.
    """
    from ddpdoctor.app.lint_files import read, with_files
    from ddpdoctor.system.machine import this_machine

    named, inside = paths
    machine = this_machine(request.timeout or FILE_SECONDS)
    found = read((*named, *inside), machine, launch)
    left_out = [f"{path}:" for path in inside if path not in named and not found.inputs[path].is_understood]
    found.failures = [failure for failure in found.failures if not failure.startswith(tuple(left_out))]
    report = with_files(report, facts, rules, found, request, machine)
    told = [each for path, each in found.inputs.items() if path in named]
    told += [
        replace(each, is_named=False) for path, each in found.inputs.items() if path not in named and each.is_understood
    ]
    report = replace(report, inputs=(*report.inputs, *told))
    lines = (*launch.lines, *(line for lines in found.lines.values() for line in lines))
    return report, replace(facts, launch=replace(launch, lines=lines))
