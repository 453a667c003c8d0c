"""`ddpdoctor check`: the preflight."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common, seconds

__all__ = ["check"]

SECTIONS = ("environ", "host", "net", "gpu", "topo", "versions")


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
    from ddpdoctor.cli.output import emit
    from ddpdoctor.cli.reading import facts_for
    from ddpdoctor.cli.settings import rules_for
    from ddpdoctor.doctor import examine

    started = time.time()
    rules = rules_for(common, SECTIONS)
    facts, failures = facts_for(common, SECTIONS)
    report = examine(facts, rules, command="check", started=started, failures=failures)
    return emit(report, common)
