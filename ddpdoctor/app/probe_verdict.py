"""Judges what the ranks of a probe observed: the facts from their supervisors become a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddpdoctor.app.facts_source import facts_for
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.engine import examine
from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.probe_nodes import nodes_of
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Severity
from ddpdoctor.probe.rank_env import OWN_LAUNCHER

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.findings import Report
    from ddpdoctor.rules import Rule

__all__ = ["judge_probe"]


def judge_probe(order: Mapping[str, Any], request: Request) -> tuple[Report, Facts]:
    """The report about a probe, and its facts; `order` holds `probe` (facts as JSON), `host` and `started`."""
    facts = _facts(order, request)
    return examine(facts, _rules(request, facts), command="probe", started=order["started"]), facts


def _facts(order: Mapping[str, Any], request: Request) -> Facts:
    """The facts of the probe, what it shows about several nodes, and the environment, because a variable may be the cause."""
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
    """The rules that can judge a probe: all facts that they need are known, and some of them are the probe's."""
    areas = ("environ", "host", "net", "gpu", "probe", *(("versions", "launch") if facts.nodes is not None else ()))
    known = {name for name in ("probe", "nodes", "environ") if getattr(facts, name) is not None}
    seen = known & {"probe", "nodes"}
    return tuple(
        each
        for each in rules_for(request, areas)
        if set(each.needs) <= known and (seen & {*each.needs, *each.wants} or _may_stop_a_rank(each))
    )


def _waits_at_the_loopback(probe: Probe) -> bool:
    """Whether ranks did not join a store on the loopback interface, which other machines cannot reach; with ddpdoctor's own
    launcher the address is right."""
    is_absent = bool(probe.seen(Kind.NEVER_JOINED, Kind.REFUSED))
    return is_absent and probe.launcher != OWN_LAUNCHER and is_loopback(probe.master.rpartition(":")[0])


def _may_stop_a_rank(rule: Rule) -> bool:
    sections = {*rule.needs, *rule.wants}
    return rule.severity is Severity.ERROR and "environ" in sections and sections <= {"environ", "launch", "nodes"}
