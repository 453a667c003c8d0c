"""`ddpdoctor compare`: what differs between the facts that `ddpdoctor collect` saved on several nodes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, Format, UsageError

if TYPE_CHECKING:
    from ddpdoctor.facts.nodes import Node
    from ddpdoctor.rules import Rule

__all__ = ["compare"]

AREAS = ("environ", "launch", "host", "net", "gpu", "topo", "versions")


def compare(
    common: Common,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE FILE…", help="Facts that `ddpdoctor collect` saved, one node each."),
    ] = None,
) -> int:
    """Show what differs between collected nodes: the majority against the others, worst first."""
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.cli.output import emit_text, has_colour, width
    from ddpdoctor.cli.tables.compare import draw
    from ddpdoctor.engine import examine
    from ddpdoctor.facts.nodes import Nodes
    from ddpdoctor.facts.record import SCHEMA, Facts
    from ddpdoctor.render import render

    started = time.time()
    if len(files or ()) < 2:
        raise UsageError(
            "compare needs two files or more that `ddpdoctor collect` saved, the good node's and the bad one's"
        )
    nodes, failures = _read([Path(each) for each in files or ()])
    facts = Facts(schema=SCHEMA, collected_at="", hostname="", nodes=Nodes(nodes=nodes, expected=len(nodes)))
    report = examine(
        facts,
        _chosen(rules_for(common, AREAS)) if len(nodes) > 1 else (),
        command="compare",
        started=started,
        failures=failures,
    )
    text = None
    if common.format is not Format.table:
        text = render(report, common.format.value)
    table = draw(report, nodes, width=width(), colour=has_colour(common), quiet=common.quiet)
    return report.exit_code(common.fail_on.severity) if emit_text(table, text, common) else 3


def _chosen(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that hold nodes against each other and need no meeting."""
    from ddpdoctor.rules import CauseScope

    return tuple(each for each in rules if each.scope is CauseScope.FACTS_OF_NODES)


def _read(paths: list[Path]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """A node for each file that can be read, and what could not be read. Two files of one host are told apart by name."""
    from ddpdoctor.app.facts_source import UnreadableError, load_facts
    from ddpdoctor.facts.comparable_properties import node_of

    found: list[tuple[Path, Node]] = []
    failures = []
    for path in paths:
        try:
            found.append((path, node_of(load_facts(path))))
        except UnreadableError as error:
            failures.append(f"read {error}")
    hosts = Counter(node.host for _, node in found)
    names = Counter(path.name for path, _ in found)
    nodes = (
        replace(node, host=path.name if names[path.name] == 1 else str(path))
        if hosts[node.host] > 1 or not node.host
        else node
        for path, node in found
    )
    return tuple(nodes), tuple(failures)
