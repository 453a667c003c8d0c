"""`ddpdoctor lint`: launch lines and files, judged without starting anything."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common, UsageError

__all__ = ["lint"]


def lint(
    common: Common,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]…", help="Scripts, sbatch files, manifests.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="LINE", help="The launch line of one node; once a node.")
    ] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", metavar="VERSION", help="The torch that reads the line, such as 2.13.")
    ] = None,
) -> int:
    """Judge a launch line (after --), one line a node, or files, before anything starts."""
    from ddpdoctor.cli.linting import facts_of, rules_of
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.repair import repaired
    from ddpdoctor.cli.tables.lint import draw
    from ddpdoctor.collectors.machine import this_machine
    from ddpdoctor.doctor import examine
    from ddpdoctor.facts.torchrun_options import OLDEST, version_of

    started = time.time()
    if torch is not None and (version_of(torch) is None or (version_of(torch) or OLDEST) < OLDEST):
        raise UsageError(
            f"--torch {torch!r:.40}: expected a version such as 2.13 or 2.4.1, {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    if not common.launch and not node and not files and common.facts is None:
        raise UsageError("nothing to judge: give FILEs, --node 'LINE', or a launch line after --")
    facts = facts_of(common, node or [], torch)
    rules = rules_of(common)
    report = repaired(examine(facts, rules, command="lint", started=started), facts, rules)
    if files and facts.launch is not None:
        from ddpdoctor.cli.lint_files import read, with_files

        found = read(files, this_machine(common.timeout or 30.0), facts.launch)
        report = with_files(report, facts, rules, found, common)
        lines = (*facts.launch.lines, *(line for each in found.lines.values() for line in each))
        facts = replace(facts, launch=replace(facts.launch, lines=lines))
    return emit(report, common, draw(facts, report, width=width(), colour=has_colour(common)))
