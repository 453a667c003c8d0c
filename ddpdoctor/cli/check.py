"""`ddpdoctor check`: the preflight of this machine, or of the job that the environment describes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.options import Common, Format, seconds

if TYPE_CHECKING:
    from ddpdoctor.collectors.probe import Answer
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report

__all__ = ["check"]

SECTIONS = ("environ", "host", "net", "gpu", "topo", "versions")
DEFAULT_SECONDS = 120.0
"""`--timeout` of commands that start ranks."""


def check(
    common: Common,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Do not start ranks.")] = False,
    no_meet: Annotated[bool, typer.Option("--no-meet", help="Judge and probe this node alone.")] = False,
    join_timeout: Annotated[
        float,
        typer.Option("--join-timeout", metavar="SECONDS", parser=seconds, help="How long to wait for the other nodes."),
    ] = 30.0,
) -> int:
    """Judge this machine, or a launch given after --, before the job starts."""
    from ddpdoctor.cli.reading import facts_for
    from ddpdoctor.cli.settings import rules_for
    from ddpdoctor.doctor import examine

    started = time.time()
    common = replace(common, timeout=common.timeout or DEFAULT_SECONDS)
    answer = None
    if common.facts is not None or no_probe:
        areas = SECTIONS if common.facts is None else (*SECTIONS, "probe")
        rules = rules_for(common, areas)
        facts, failures = facts_for(common, areas)
    else:
        areas = (*SECTIONS, "probe")
        rules = rules_for(common, areas)
        facts, failures, answer = _probe(common, join_timeout, no_meet)
    report = examine(facts, rules, command="check", started=started, failures=failures)
    if answer is not None and not answer.is_first:
        return report.exit_code(common.fail_on.severity)
    if answer is not None and not answer.is_head:
        return _tell_shortly(report, common)
    return _tell(report, facts, areas, common)


def _probe(common: Common, join_timeout: float, no_meet: bool) -> tuple[Facts, tuple[str, ...], Answer | None]:
    """The facts with those of a probe, what could not be done, and what the probe said of this rank's turn to tell."""
    from ddpdoctor.cli.probing import Probing
    from ddpdoctor.cli.progress import Progress
    from ddpdoctor.cli.reading import facts_for

    probing = Probing(common, join_timeout, no_meet)
    looks = probing.looks_at_the_machine()
    with Progress(common.quiet or not looks) as progress:
        try:
            probing.start_early()
            progress.phase("looking at this machine")
            facts, failures = facts_for(common, SECTIONS if looks else ("environ",))
            facts = probing.finish(facts, progress.phase)
            if not looks and (probing.answer is None or probing.answer.is_first):  # the rank that would tell is gone
                facts = replace(facts_for(common, SECTIONS)[0], probe=facts.probe)
        finally:
            probing.stop()
    return facts, failures, probing.answer


def _tell(report: Report, facts: Facts, areas: tuple[str, ...], common: Common) -> int:
    """Show the summary and the report, and write the file."""
    from ddpdoctor.cli.output import emit, has_colour, width

    tables = ""
    if not common.quiet and (common.format is Format.table or common.output is not None):
        from ddpdoctor.cli.tables.check import draw

        tables = draw(facts, report, areas, width=width(), colour=has_colour(common))
    return emit(report, common, tables)


def _tell_shortly(report: Report, common: Common) -> int:
    """On a node that is not rank 0's: one line, and the file."""
    from ddpdoctor.cli.output import WIDEST, emit_text
    from ddpdoctor.render import render

    text = None
    if common.output is not None:
        options = {"width": WIDEST} if common.format is Format.table else {}
        text = render(report, common.format.value, **options)
    first = f": {report.findings[0].message}" if report.findings else ""
    written = emit_text(f"ddpdoctor check on {report.host}: {report.verdict.value}{first}\n", text, common)
    return report.exit_code(common.fail_on.severity) if written else 3
