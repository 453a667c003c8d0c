"""`env ports net host versions gpus topo`: the facts of one part of a machine, and what its rules find in them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddpdoctor.app.facts_source import facts_for
from ddpdoctor.app.request import seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.collectors import SECONDS
from ddpdoctor.engine import examine

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report
    from ddpdoctor.rules import Rule

__all__ = ["SECTIONS", "examine_part"]

SECTIONS = {
    "env": ("environ",),
    "ports": ("environ", "net"),
    "net": ("environ", "net"),
    "host": ("environ", "host"),
    "versions": ("environ", "gpu", "versions"),
    "gpus": ("environ", "gpu"),
    "topo": ("environ", "gpu", "topo"),
}
"""The sections that each part shows; its rules are those of the last section's area, and may need further sections."""

OTHER_AREAS = {
    "versions": ("launch",),
    "net": ("environ",),
    "ports": ("environ",),
    "gpus": ("environ", "launch", "versions"),
}
"""The other areas with rules that judge only what a part shows, as declared by `also_in`."""


def examine_part(command: str, request: Request) -> tuple[Report, tuple[Facts, ...]]:
    """The report of one part, and the facts that its tables show: of this machine, or of each machine that files show."""
    started = time.monotonic()
    rules = _rules(command, request)
    if request.facts is not None:
        from ddpdoctor.app.facts_files import DEFAULT_SECONDS, is_of_tools, part_of_files

        if is_of_tools(str(request.facts), seconds_left(request, DEFAULT_SECONDS)):
            return part_of_files(command, SECTIONS[command], request, rules, started)
    needed = {*SECTIONS[command], *(name for rule in rules for name in (*rule.needs, *rule.wants))}
    facts, failures = facts_for(request, [name for name in SECONDS if name in needed])
    return examine(facts, rules, command=command, started=started, failures=failures), (facts,)


def _rules(command: str, request: Request) -> tuple[Rule, ...]:
    rules = rules_for(request, (SECTIONS[command][-1],))
    rules += tuple(rule for rule in rules_for(request, OTHER_AREAS.get(command, ())) if command in rule.also_in)
    if request.facts is not None:
        return rules
    # Without saved facts a part starts no ranks and reads no launch line.
    return tuple(rule for rule in rules if not {"probe", "launch"} & set(rule.needs))
