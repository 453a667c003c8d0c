"""What NET001, NET003, NET007 and NET008 say of a meeting: nodes that came by the side door, for the job's port was closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules.node_findings import named, place

__all__ = ["answered_by_another", "dropped", "is_elsewhere", "other_ways", "rejected"]


def dropped(nodes: Nodes) -> Iterator[Finding]:
    """NET007: packets to the master port vanish, those to another port of the same machine do not."""
    yield from _closed(nodes, (ConnectOutcome.NO_ANSWER,), "nothing comes back from")


def rejected(nodes: Nodes) -> Iterator[Finding]:
    """NET008: the master listens, and connections to its port are refused on the way."""
    yield from _closed(
        nodes, (ConnectOutcome.REFUSED, ConnectOutcome.PROHIBITED, ConnectOutcome.NO_HOST), "connections are refused at"
    )


def answered_by_another(nodes: Nodes) -> Iterator[Finding]:
    """NET001: somebody else answers at the master's address and port: to some nodes, or to the only one that is here."""
    if len(nodes.nodes) == 1 and nodes.nodes[0].way in (ConnectOutcome.STRANGER, ConnectOutcome.SILENT):
        yield _held(nodes.nodes[0])
    yield from _closed(nodes, (ConnectOutcome.STRANGER, ConnectOutcome.SILENT), "something else answers at")


def other_ways(nodes: Nodes) -> Iterator[Finding]:
    """NET003: what is none of the other kinds."""
    yield from _closed(
        nodes, (ConnectOutcome.FAILED, ConnectOutcome.RESET, ConnectOutcome.NO_ROUTE), "no connection can be made to"
    )


def is_elsewhere(node: Node, host: Node) -> bool:
    """Whether the master's name leads this node to another machine than the one that listens, which knows it better."""
    known = {*host.addresses, *host.master_addresses}
    has_told = bool(node.master_addresses) and bool(host.addresses)
    return node is not host and has_told and not {*node.master_addresses} & known


def _closed(nodes: Nodes, outcomes: Sequence[ConnectOutcome], what: str) -> Iterator[Finding]:
    if not nodes.is_main or len(nodes.nodes) < 2:
        return
    host = nodes.nodes[nodes.hosted_by]
    found = [node for node in nodes.nodes if node.way in outcomes and not is_elsewhere(node, host)]
    if not found:
        return
    others = [node for node in nodes.nodes if node.way is None and node is not host and not _is_beside(node, host)]
    yield Finding(
        f"from {named(found)} {what} {host.master_addr}:{host.master_port}, where {host.title} listens and its other ports"
        " can be reached: an open port was expected",
        tuple(
            Evidence(f"nodes[{node.title}].way", (node.way or ConnectOutcome.FAILED).value, "open")
            for node in found[:16]
        ),
        where=_where(found, host, others),
    )


def _held(node: Node) -> Finding:
    """A port that speaks TCPStore, or to which nothing else can be said: it is in the hands of a job that runs already."""
    master = f"{node.master_addr}:{node.master_port}"
    return Finding(
        f"at {master} answers a store that is not at this meeting: a job runs there already, or node 0 of this one was"
        " started without its check; expected the meeting",
        (Evidence(f"nodes[{node.title}].way", (node.way or ConnectOutcome.STRANGER).value, "the meeting of this job"),),
        fix=f"On {node.master_addr} find who listens with `MASTER_PORT={node.master_port} ddpdoctor ports`: end that job,"
        " or give this one another port on every node. If it is this job's own, check before node 0 is started.",
        where=Where(peer=node.master_addr),
    )


def _is_beside(node: Node, host: Node) -> bool:
    """Whether a rank is on the machine of the one that listens: what it reaches says nothing of the network."""
    return bool(host.machine) and node.machine == host.machine


def _where(found: Sequence[Node], host: Node, others: Sequence[Node]) -> Where:
    """Those who cannot reach the port are to blame while others can; else the machine whose port is closed to all."""
    blamed, peers = (found, [host]) if others else ([host], found)
    where, names = place(blamed), {peer.host for peer in peers}
    return Where(
        host=where.host,
        node_rank=where.node_rank,
        rank=where.rank,
        local_rank=where.local_rank,
        peer=names.pop() if len(names) == 1 else None,
    )
