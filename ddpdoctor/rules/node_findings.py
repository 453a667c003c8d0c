"""Findings about nodes that differ: the minority is at fault; with two nodes or a tie all are named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.facts.environ import shorten
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.nodes import Form, Node, Nodes, Split, ranges
from ddpdoctor.findings import Evidence, Finding, Severity, Where

__all__ = ["about", "differs", "named", "only_met", "place"]

MOST_NAMED = 6
MOST_EVIDENCE = 16


def only_met(nodes: Nodes | None, *others: object | None) -> bool:
    """Whether a rule that also judges other facts has only the nodes.

    Raises:
        CannotLook: it has neither.
    """
    if any(other is not None for other in others):
        return False
    if nodes is None:
        not_here("neither other nodes nor a probe were examined")
    return True


def named(nodes: Iterable[Node]) -> str:
    """Nodes for a sentence: `node 1 (b), node 3 (d)`; of many, the first ones and the number of the others."""
    listed = list(nodes)
    shown = ", ".join(node.title for node in listed[:MOST_NAMED])
    return shown + (f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else "")


def place(nodes: Iterable[Node]) -> Where:
    """The place of nodes that are at fault: the fields that all of them share."""
    found = list(nodes)
    hosts, one = {node.host for node in found}, found[0] if len(found) == 1 else None
    is_rank = one is not None and one.form == Form.ENV
    return Where(
        host=hosts.pop() if len(hosts) == 1 else None,
        node_rank=one.node_rank if one is not None else None,
        rank=one.rank if one is not None and is_rank else None,
        local_rank=one.local_rank if one is not None and is_rank else None,
    )


def about(
    nodes: Iterable[Node],
    message: str,
    path: str,
    seen: str,
    expected: str,
    *,
    fix: str = "",
    fix_command: str | None = None,
    severity: Severity | None = None,
    is_blamed: bool = True,
) -> Finding:
    """A finding about nodes; with `is_blamed` its place is that of the nodes."""
    found = list(nodes)
    return Finding(
        message,
        (Evidence(path, shorten(seen), shorten(expected)),),
        fix=fix,
        fix_command=fix_command,
        severity=severity,
        where=place(found) if is_blamed and found else Where(),
        ranks=tuple(sorted(n.rank for n in found if n.form == Form.ENV and n.rank is not None)) if is_blamed else (),
    )


def differs(
    split: Split,
    what: str,
    path: str,
    *,
    fix: str = "",
    fix_command: str | None = None,
    severity: Severity | None = None,
) -> Finding:
    """The finding that `what` is not the same on all nodes."""
    shown = "; ".join(f"{_group(nodes)}: {shorten(value)}" for value, nodes in split.groups[:4])
    more = f"; and {len(split.groups) - 4} more values" if len(split.groups) > 4 else ""
    common = split.common
    evidence = [
        Evidence(f"nodes[{node.title}].{path}", shorten(value), shorten(common or "one value"))
        for value, nodes in split.groups
        if value != common
        for node in nodes
    ]
    finding = about(
        split.odd,
        f"{what} differs between nodes ({shown}{more})",
        path,
        "",
        "",
        fix=fix,
        fix_command=fix_command,
        severity=severity,
        is_blamed=common is not None,
    )
    return replace(finding, evidence=tuple(evidence[:MOST_EVIDENCE]))


def _group(nodes: tuple[Node, ...]) -> str:
    """The nodes with one value: by name if they are few, otherwise their number."""
    if len(nodes) <= MOST_NAMED:
        return ", ".join(_short(node) for node in nodes)
    numbers = [n.rank if n.form == Form.ENV else n.node_rank for n in nodes]
    if None in numbers:
        return f"{len(nodes)} nodes"
    unit = "ranks" if nodes[0].form == Form.ENV else "nodes"
    return f"{unit} {ranges(n for n in numbers if n is not None)}"


def _short(node: Node) -> str:
    return node.title if node.form == Form.ENV else node.host
