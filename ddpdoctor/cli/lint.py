"""`ddpdoctor lint`: launch lines and files, judged without starting anything."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, Format, UsageError

if TYPE_CHECKING:
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report

__all__ = ["lint"]


def lint(
    common: Common,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]…", help="Scripts, notebooks, folders of them, sbatch files, manifests."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="LINE", help="The launch line of one node; once a node.")
    ] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", metavar="VERSION", help="The torch that reads the line, such as 2.13.")
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print the corrections of scripts as a patch for git apply or patch -p1.")
    ] = False,
) -> int:
    """Judge a launch line (after --), one line a node, or files, before anything starts."""
    started = time.time()
    _check_use(common, files or [], node or [], torch, diff)
    report, facts = _judged(common, files or [], node or [], torch, started)
    if diff:
        return _show_patch(report, common)
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.tables.lint import draw

    return emit(report, common, draw(facts, report, width=width(), colour=has_colour(common)))


def _check_use(common: Common, files: list[str], node: list[str], torch: str | None, diff: bool) -> None:
    """Refuse what makes no sense.

    Raises:
        UsageError: nothing to judge, no such torch, or two things for standard output.
    """
    from ddpdoctor.facts.torchrun_options import OLDEST, version_of

    if torch is not None and (version_of(torch) is None or (version_of(torch) or OLDEST) < OLDEST):
        raise UsageError(
            f"--torch {torch!r:.40}: expected a version such as 2.13 or 2.4.1, {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    if not common.launch and not node and not files and common.facts is None:
        raise UsageError("nothing to judge: give FILEs, --node 'LINE', or a launch line after --")
    if diff and common.format is not Format.table and common.output is None:
        raise UsageError(f"--diff and --format {common.format.value} both want standard output: add --output FILE")


def _judged(
    common: Common, files: list[str], node: list[str], torch: str | None, started: float
) -> tuple[Report, Facts]:
    from ddpdoctor.app.lint_lines import facts_of, rules_of, rules_of_machines, with_machines
    from ddpdoctor.collectors.script import is_script
    from ddpdoctor.engine import examine
    from ddpdoctor.system.machine import this_machine

    scripts = [path for path in files if is_script(path)]
    others = [path for path in files if path not in scripts]
    facts = facts_of(common, node, torch)
    rules = rules_of(common) if common.launch or node or others or common.facts is not None else ()
    report = examine(facts, rules, command="lint", started=started)
    if facts.launch is not None and facts.launch.lines:
        report = with_machines(report, facts, rules_of_machines(common, facts.launch.lines))
    if rules:
        from ddpdoctor.app.autocorrect import autocorrected

        report = autocorrected(report, facts, rules)
    if others and facts.launch is not None:
        from ddpdoctor.app.lint_files import read, with_files

        found = read(others, this_machine(common.timeout or 30.0), facts.launch)
        report = with_files(report, facts, rules, found, common)
        lines = (*facts.launch.lines, *(line for each in found.lines.values() for line in each))
        facts = replace(facts, launch=replace(facts.launch, lines=lines))
    if facts.launch is not None and (scripts or any(line.script and line.script.exists for line in facts.launch.lines)):
        from ddpdoctor.app.lint_scripts import with_scripts

        report = with_scripts(report, scripts, facts.launch.lines, facts, common)
    return report, facts


def _show_patch(report: Report, common: Common) -> int:
    """The patch alone on standard output, how much it corrects on standard error, the report in --output."""
    from ddpdoctor.app.patch import patch
    from ddpdoctor.cli.output import WIDEST, emit_text
    from ddpdoctor.render import render

    text, count, failures = patch(report.findings)
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    for failure in failures:
        print(f"ddpdoctor: {failure}", file=sys.stderr)
    if not common.quiet:
        total = len(report.findings)
        print(f"ddpdoctor: {count} of {total} findings corrected; without --diff all are told", file=sys.stderr)
    written = True
    if common.output is not None:
        options = {"width": WIDEST} if common.format is Format.table else {}
        written = emit_text("", render(report, common.format.value, **options), common)
    return report.exit_code(common.fail_on.severity) if written else 3
