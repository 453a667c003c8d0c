"""`ddpdoctor compare`: what differs between the facts that `ddpdoctor collect` saved on several nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.facts_source import UnreadableError, load_facts
from ddpdoctor.app.request import UsageError
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.engine import examine
from ddpdoctor.facts.comparable_properties import node_of
from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.rules import CauseScope

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.findings import Report

__all__ = ["compare_nodes"]

AREAS = ("environ", "launch", "host", "net", "gpu", "topo", "versions")


def compare_nodes(request: Request, files: Sequence[str]) -> tuple[Report, tuple[Node, ...]]:
    """The report on what differs between the nodes whose facts the files hold, and these nodes.

    Raises:
        UsageError: fewer than two files.
    """
    started = time.time()
    if len(files) < 2:
        raise UsageError(
            "compare needs at least two files saved by `ddpdoctor collect`, such as those of a good and a bad node"
        )
    nodes, failures = _read([Path(name) for name in files])
    facts = Facts(schema=SCHEMA, collected_at="", hostname="", nodes=Nodes(nodes=nodes, expected=len(nodes)))
    selected = rules_for(request, AREAS)
    rules = [rule for rule in selected if rule.scope is CauseScope.FACTS_OF_NODES] if len(nodes) > 1 else ()
    return examine(facts, rules, command="compare", started=started, failures=failures), nodes


def _read(paths: Sequence[Path]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """One node per readable file, and what could not be read. Several files of one host are named by file."""
    found: list[tuple[Path, Node]] = []
    failures = []
    for path in paths:
        try:
            found.append((path, node_of(load_facts(path))))
        except UnreadableError as error:
            failures.append(str(error))
    hosts = Counter(node.host for _, node in found)
    names = Counter(path.name for path, _ in found)
    nodes = (
        replace(node, host=path.name if names[path.name] == 1 else str(path))
        if hosts[node.host] > 1 or not node.host
        else node
        for path, node in found
    )
    return tuple(nodes), tuple(failures)
