"""`ddpdoctor lint`: launch commands and files, judged without starting anything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddpdoctor.app.lint_lines import AREAS, facts_of, rules_of, rules_of_machines, with_machines
from ddpdoctor.app.request import UsageError
from ddpdoctor.engine import examine
from ddpdoctor.facts.torchrun_options import OLDEST, version_of

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.launch.record import Launch
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


def lint_inputs(request: Request, inputs: LintInputs) -> tuple[Report, Facts]:
    """The report about all inputs, with the source lines of its findings, and the facts of the launch commands in them.

    Raises:
        UsageError: nothing to judge, or no such torch.
    """
    from ddpdoctor.app.excerpts import with_excerpts

    report, facts = _lint(request, inputs)
    return with_excerpts(report, facts.launch), facts


def _lint(request: Request, inputs: LintInputs) -> tuple[Report, Facts]:
    from ddpdoctor.collectors.script import is_script

    started = time.time()
    _check(request, inputs)
    scripts = [path for path in inputs.files if is_script(path)]
    others = [path for path in inputs.files if path not in scripts]
    facts, failures = _facts(request, inputs)
    rules = rules_of(request) if request.launch or inputs.nodes or others or request.facts is not None else ()
    report = examine(facts, rules, command="lint", started=started, failures=failures)
    report = _with_launch_commands(report, facts, rules, request)
    if facts.launch is None:
        return report, facts
    if others:
        report, facts = _with_files(report, facts, facts.launch, rules, others, request)
    lines = facts.launch.lines if facts.launch is not None else ()
    if scripts or any(line.script and line.script.exists for line in lines):
        from ddpdoctor.app.lint_scripts import with_scripts

        report = with_scripts(report, scripts, lines, facts, request)
    return report, facts


def _check(request: Request, inputs: LintInputs) -> None:
    version = None if inputs.torch is None else version_of(inputs.torch)
    if inputs.torch is not None and (version is None or version < OLDEST):
        raise UsageError(
            f"--torch {inputs.torch!r:.40}: expected a version such as 2.13 or 2.4.1, {OLDEST[0]}.{OLDEST[1]} or newer"
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
    report: Report, facts: Facts, launch: Launch, rules: tuple[Rule, ...], paths: Sequence[str], request: Request
) -> tuple[Report, Facts]:
    """The report with what is found in shell files and manifests, and the facts with their launch commands."""
    from ddpdoctor.app.lint_files import read, with_files
    from ddpdoctor.system.machine import this_machine

    found = read(paths, this_machine(request.timeout or FILE_SECONDS), launch)
    report = with_files(report, facts, rules, found, request)
    lines = (*launch.lines, *(line for lines in found.lines.values() for line in lines))
    return report, replace(facts, launch=replace(launch, lines=lines))
