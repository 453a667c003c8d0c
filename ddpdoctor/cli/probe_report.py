"""`python -m ddpdoctor.cli.probe_report`: judges the facts of a probe that a supervisor hands over, and reports.

A process of its own, so that the supervisors stay small: the rules, Typer and rich are loaded here only.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpdoctor.cli import main
from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.probe_nodes import nodes_of
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Severity
from ddpdoctor.probe.rank_env import OWN_LAUNCHER
from ddpdoctor.rules import Rule

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request

__all__ = ["report"]


def report(order: dict[str, Any]) -> int:
    """Judge and write; the exit code."""
    from ddpdoctor.app.request import FailOn, Format, Request
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.screens.probe import draw
    from ddpdoctor.engine import examine

    options = order["options"]
    request = Request(
        format=Format(options["format"]),
        output=Path(options["output"]) if options["output"] else None,
        select=options["select"],
        ignore=options["ignore"],
        fail_on=FailOn(options["fail_on"]),
        quiet=options["quiet"] or not order["is_head"],
        no_color=options["no_color"],
    )
    facts = _facts(order, request)
    rules = _rules(request, facts)
    judged = examine(facts, rules, command="probe", started=order["started"])
    tables = "" if request.quiet else draw(facts, width=width(), colour=has_colour(request))
    return emit(judged, request, tables)


def _facts(order: dict[str, Any], request: Request) -> Facts:
    """The probe's, and what it shows of several nodes; the environment where a variable may be to blame."""
    from ddpdoctor.app.facts_source import facts_for

    probe = decode(Probe, order["probe"])
    facts = Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hostname=order["host"],
        probe=probe,
        nodes=nodes_of(probe),
    )
    if probe.seen(Kind.BAD_ENVIRONMENT, Kind.UNRESOLVABLE) or _waits_at_the_loopback(
        probe
    ):  # which variable, what to type
        facts = replace(facts, environ=facts_for(request, ("environ",))[0].environ)
    return facts


def _rules(request: Request, facts: Facts) -> tuple[Rule, ...]:
    """Those that have something of a probe to go by."""
    from ddpdoctor.app.rule_selection import rules_for

    areas = ("environ", "host", "net", "gpu", "probe", *(("versions", "launch") if facts.nodes is not None else ()))
    known = {name for name in ("probe", "nodes", "environ") if getattr(facts, name) is not None}
    seen = known & {"probe", "nodes"}
    return tuple(
        each
        for each in rules_for(request, areas)
        if set(each.needs) <= known and (seen & {*each.needs, *each.wants} or _may_stop_a_rank(each))
    )


def _waits_at_the_loopback(probe: Probe) -> bool:
    """Ranks did not come, and could not have from another machine. Our own launcher was told where to wait."""
    is_absent = bool(probe.seen(Kind.NEVER_JOINED, Kind.REFUSED))
    return is_absent and probe.launcher != OWN_LAUNCHER and is_loopback(probe.master.rpartition(":")[0])


def _may_stop_a_rank(rule: Rule) -> bool:
    sections = {*rule.needs, *rule.wants}
    return rule.severity is Severity.ERROR and "environ" in sections and sections <= {"environ", "launch", "nodes"}


def _from_stdin() -> int:
    from ddpdoctor.cli.options import WrongUse

    try:
        return report(json.load(sys.stdin))
    except WrongUse as error:  # what only the rules can refuse: --select with no code's beginning, --output to nowhere
        print(f"ddpdoctor: {error.format_message()}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    main(command=_from_stdin)
