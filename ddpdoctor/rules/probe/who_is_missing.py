"""PROBE001 to PROBE003 for a multi-node check: nodes that did not join it, or joined late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.nodes import Form, Node, Nodes, ranges
from ddpdoctor.findings import Evidence, Finding, Role, Where
from ddpdoctor.rules.environ.env012_014_to_017_master_address import master_addr_loopback
from ddpdoctor.rules.environ.env018_master_addr_not_rank_zero import master_addr_not_rank_zero
from ddpdoctor.rules.node_findings import about, named

__all__ = ["head_missing", "late", "missing"]

LATE_SECONDS = 15.0
MOST_FINDINGS = 8
MOST_NAMED = 6


def missing(nodes: Nodes) -> Iterator[Finding]:
    """PROBE001: one finding for each node that did not join, one for all if there are many."""
    for node in [nodes.nodes[index] for index in nodes.silent]:
        yield about(
            [node],
            f"{node.title} joined and then stopped answering; its process or its network failed",
            "nodes.silent",
            node.title,
            "what it sees of the network",
        )
    absent = [number for number in nodes.missing if number != 0]
    if nodes.lacking_unnamed:
        yield _absent(nodes, (), f"{nodes.lacking_unnamed} of {nodes.expected} {_unit(nodes, 2)}")
    for group in [[n] for n in absent] if len(absent) <= MOST_FINDINGS else [absent]:
        yield _absent(nodes, group, f"{_unit(nodes, len(group))} {ranges(group)}{_host(nodes, group)}")


def head_missing(nodes: Nodes) -> Iterator[Finding]:
    """PROBE002: the node of rank 0 did not join."""
    if nodes.lost_host is not None:
        yield Finding(
            f"{nodes.lost_host}, which hosts the check, stopped answering",
            (Evidence("nodes.lost_host", nodes.lost_host, "a verdict"),),
            where=Where(host=nodes.lost_host),
        )
    elif 0 in nodes.missing:
        yield _absent(nodes, [0], f"{_unit(nodes, 1)} 0{_host(nodes, [0])}")


def late(nodes: Nodes) -> Iterator[Finding]:
    """PROBE003: nodes that joined long after most others."""
    waits = sorted(node.waited_seconds or 0.0 for node in nodes.nodes)
    if len(waits) < 2 or waits[-1] - waits[0] < LATE_SECONDS:
        return
    middle = waits[(len(waits) - 1) // 2]
    late_nodes = [node for node in nodes.nodes if (node.waited_seconds or 0.0) - middle >= LATE_SECONDS]
    if late_nodes:
        yield about(
            late_nodes,
            f"{named(late_nodes)} joined {waits[-1] - waits[0]:.0f} s after the first",
            "nodes.waited_seconds",
            f"{waits[-1]:.1f}",
            f"below {LATE_SECONDS:.0f}",
        )


def _hosts(nodes: Sequence[Node]) -> str:
    return ", ".join(node.host for node in nodes[:MOST_NAMED]) + (", …" if len(nodes) > MOST_NAMED else "")


def _unit(nodes: Nodes, count: int) -> str:
    return ("rank" if nodes.form == Form.ENV else "node") + ("s" if count > 1 else "")


def _host(nodes: Nodes, numbers: Sequence[int]) -> str:
    known = [host for number in numbers if (host := nodes.missing_hosts.get(str(number)))]
    return f" ({', '.join(known[:8])})" if known else ""


def _absent(nodes: Nodes, numbers: Sequence[int], who: str) -> Finding:
    """Who did not join, who did, and where they waited."""
    here = nodes.nodes
    first = here[nodes.hosted_by] if here else None
    where = f" at {first.master_addr}:{first.master_port}" if first is not None and first.master_addr else ""
    is_rank = nodes.form == Form.ENV
    cause = _cause(first) if len(here) == 1 and not nodes.may_be_one_machine else None
    one = numbers[0] if len(numbers) == 1 else None
    left = [n for n in nodes.left if not numbers or (n.rank if is_rank else n.node_rank) in numbers]
    also = f"; {named(left)} joined and left" if left and one is None else ""
    who, what = (named(left), "joined and left") if left and not also else (who, "did not join")
    host = nodes.missing_hosts.get(str(one)) if one is not None else None
    fix = "" if left else _advice(who if numbers else f"the missing {_unit(nodes, nodes.lacking_unnamed)}", where)
    joined = f"{len(here)} of {nodes.expected} joined: {named(here) if is_rank else _hosts(here)}"
    return Finding(
        f"{who} {what} within {nodes.waited_seconds:.0f} s{where} ({joined}){also}",
        (Evidence("nodes.missing", who, f"all {nodes.expected} of them"),),
        fix=fix,
        where=Where(
            host=host or (left[0].host if len(left) == 1 else None),
            node_rank=None if is_rank else one,
            rank=one if is_rank else None,
        ),
        ranks=tuple(numbers) if is_rank else nodes.ranks_of(numbers),
        role=Role.CONSEQUENCE if cause else None,
        caused_by=cause,
    )


def _advice(who: str, where: str) -> str:
    """What to do about nodes or ranks that did not join ` at HOST:PORT`."""
    address = f" with {where.removeprefix(' at ')}" if where else ""
    return f"Start the command for {who}. If it was started, compare its address and port{address}."


def _cause(node: Node | None) -> str | None:
    """The rule that explains why no other node could reach this one."""
    if node is None or node.master_addr is None:
        return None
    if is_loopback(node.master_addr):
        return master_addr_loopback.code
    return master_addr_not_rank_zero.code if node.is_at_master and not node.owns and node.form != Form.C10D else None
