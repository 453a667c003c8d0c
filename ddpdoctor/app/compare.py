"""`ddpdoctor compare`: what differs between the facts that `ddpdoctor collect` saved on several nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.archived_inputs import unpacked_inputs
from ddpdoctor.app.facts_source import UnreadableError, load_facts
from ddpdoctor.app.request import UsageError, seconds_left
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
    started = time.monotonic()
    if len(files) < 2:
        raise UsageError(
            "compare needs at least two files saved by `ddpdoctor collect`, such as those of a good and a bad node"
        )
    with unpacked_inputs(files) as archived:
        until = time.monotonic() + seconds_left(request)
        nodes, failures = _read([Path(name) for name in archived.paths], archived.names, until)
    facts = Facts(schema=SCHEMA, collected_at="", hostname="", nodes=Nodes(nodes=nodes, expected=len(nodes)))
    selected = rules_for(request, AREAS)
    rules = [rule for rule in selected if rule.scope is CauseScope.FACTS_OF_NODES] if len(nodes) > 1 else ()
    return examine(facts, rules, command="compare", started=started, failures=failures), nodes


def _read(paths: Sequence[Path], names: Mapping[str, str], until: float) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """The nodes of the readable files, and what could not be read. Several nodes of one host are named by file.

    `names` are the archives by the folders that they were unpacked into; `until` is when reading ends (time.monotonic).
    """
    found: list[tuple[Path, Node]] = []
    failures = []
    for path in paths:
        given = Path(names.get(str(path), str(path)))
        try:
            found += [(given, node) for node in _nodes_of(path, until)]
        except UnreadableError as error:
            failures.append(str(error))
    hosts = Counter(node.host for _, node in found)
    files = Counter(path.name for path, _ in found)
    nodes = (
        replace(node, host=path.name if files[path.name] == 1 else str(path))
        if hosts[node.host] > 1 or not node.host
        else node
        for path, node in found
    )
    return tuple(nodes), tuple(failures)


def _nodes_of(path: Path, until: float) -> list[Node]:
    """The node whose facts a file holds, or those that the outputs of tools in a file or folder describe.

    Raises:
        UnreadableError: it holds neither.
    """
    if str(path) == "-":
        return [node_of(load_facts(path, until - time.monotonic()))]
    from ddpdoctor.app.facts_files import texts_in
    from ddpdoctor.app.tool_files import machines_in, node_of_files

    texts, saved, _ = texts_in([str(path)], until)
    machines = [node_of_files(machine) for machine in machines_in(texts)[0]]
    return [*(node_of(facts) for _, facts in saved), *machines] or [node_of(load_facts(path, until - time.monotonic()))]
