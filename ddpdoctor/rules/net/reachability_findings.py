"""NET001, NET003, NET007 and NET008 in the multi-node check: nodes that had to connect on its second port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules.node_findings import named, place

__all__ = ["answered_by_another", "dropped", "is_elsewhere", "other_failures", "rejected"]


def dropped(nodes: Nodes) -> Iterator[Finding]:
    """NET007: packets to the master port are dropped, those to another port of the same machine are not."""
    yield from _closed(nodes, (ConnectOutcome.NO_ANSWER,), "does not answer")


def rejected(nodes: Nodes) -> Iterator[Finding]:
    """NET008: the master is listening, but connections to its port are refused on the path."""
    yield from _closed(
        nodes,
        (ConnectOutcome.REFUSED, ConnectOutcome.PROHIBITED, ConnectOutcome.NO_HOST),
        "refuses connections from",
    )


def answered_by_another(nodes: Nodes) -> Iterator[Finding]:
    """NET001: another program answers at the master's address and port, for some nodes or for the only node."""
    if len(nodes.nodes) == 1 and nodes.nodes[0].way in (ConnectOutcome.STRANGER, ConnectOutcome.SILENT):
        yield _other_store(nodes.nodes[0])
    yield from _closed(nodes, (ConnectOutcome.STRANGER, ConnectOutcome.SILENT), "reaches another program from")


def other_failures(nodes: Nodes) -> Iterator[Finding]:
    """NET003: connections that fail for none of the other reasons."""
    yield from _closed(
        nodes, (ConnectOutcome.FAILED, ConnectOutcome.RESET, ConnectOutcome.NO_ROUTE), "cannot be reached from"
    )


def is_elsewhere(node: Node, host: Node) -> bool:
    """Whether the master's name resolves on this node to another machine than the one that is listening."""
    known = {*host.addresses, *host.master_addresses}
    is_known = bool(node.master_addresses) and bool(host.addresses)
    return node is not host and is_known and not {*node.master_addresses} & known


def _closed(nodes: Nodes, outcomes: Sequence[ConnectOutcome], problem: str) -> Iterator[Finding]:
    if not nodes.is_main or len(nodes.nodes) < 2:
        return
    host = nodes.nodes[nodes.hosted_by]
    affected = [node for node in nodes.nodes if node.way in outcomes and not is_elsewhere(node, host)]
    if not affected:
        return
    others = [
        node for node in nodes.nodes if node.way is None and node is not host and not _is_same_machine(node, host)
    ]
    yield Finding(
        f"{host.master_addr}:{host.master_port} {problem} {named(affected)}, although {host.title} is listening there",
        tuple(
            Evidence(f"nodes[{node.title}].way", (node.way or ConnectOutcome.FAILED).value, "open")
            for node in affected[:16]
        ),
        where=_where(affected, host, others),
    )


def _other_store(node: Node) -> Finding:
    """A port where a TCPStore answers, or that only accepts connections: a running job uses it."""
    master = f"{node.master_addr}:{node.master_port}"
    return Finding(
        f"{master} is in use by a store that does not take part in this check",
        (Evidence(f"nodes[{node.title}].way", (node.way or ConnectOutcome.STRANGER).value, "this multi-node check"),),
        fix=f"Run `MASTER_PORT={node.master_port} ddpdoctor ports` on {node.master_addr}: end the other job, or use another"
        " port on every node. If it is this job's node 0, start its check before the job.",
        where=Where(peer=node.master_addr),
    )


def _is_same_machine(node: Node, host: Node) -> bool:
    """Whether a rank is on the machine that is listening: its connection does not test the network."""
    return bool(host.machine) and node.machine == host.machine


def _where(affected: Sequence[Node], host: Node, others: Sequence[Node]) -> Where:
    """The nodes that cannot reach the port while others can; else the machine whose port is closed to all."""
    blamed, peers = (affected, [host]) if others else ([host], affected)
    where, names = place(blamed), {peer.host for peer in peers}
    return Where(
        host=where.host,
        node_rank=where.node_rank,
        rank=where.rank,
        local_rank=where.local_rank,
        peer=names.pop() if len(names) == 1 else None,
    )
