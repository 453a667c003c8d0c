"""ENV017 to ENV020 for nodes that joined a check: which address and port of the store each was given.

Other rules compare launch lines. This is about ranks that read their environment, and about what only the
machines know: which of them an address belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.nodes import Form, Nodes, split
from ddpdoctor.findings import Finding
from ddpdoctor.rules.node_findings import about, differs, named

__all__ = ["addresses_differ", "elsewhere", "loopback", "ports_differ"]


def loopback(nodes: Nodes) -> Iterator[Finding]:
    """ENV017: each machine was told to look for rank 0 on itself, and some nodes did not join, or joined by other
    means from a machine without rank 0.
    """
    on_loopback = [node for node in nodes.nodes if _is_loopback(node.master_addr)]
    owner_machines = {node.machine for node in nodes.nodes if node.owns}
    is_apart = bool(owner_machines) and any(node.machine not in owner_machines for node in on_loopback)
    if on_loopback and (nodes.missing or nodes.lacking or is_apart):
        is_sure = is_apart or not nodes.may_be_one_machine
        lacking = nodes.lacking or len(nodes.missing)
        reason = "the job has several machines" if is_sure else f"{lacking} of {nodes.expected} did not join"
        yield about(
            on_loopback,
            f"MASTER_ADDR={on_loopback[0].master_addr} points each machine at itself, and {reason}",
            "nodes.master_addr",
            on_loopback[0].master_addr or "",
            "an address that other nodes can reach",
            is_blamed=False,
        ).if_certain(is_sure)


def elsewhere(nodes: Nodes) -> Iterator[Finding]:
    """ENV018: the address belongs to another machine than that of rank 0."""
    if nodes.form == Form.C10D:
        return  # the node that the endpoint names hosts the store: NET012
    misdirected = [
        node for node in nodes.nodes if node.is_at_master and not node.owns and not _is_loopback(node.master_addr)
    ]
    owners = [node for node in nodes.nodes if node.owns]
    unreachable_owners = [node for node in owners if node.is_at_master is False]
    if unreachable_owners and (misdirected or nodes.missing or nodes.lacking):
        where = f"is {named(misdirected)}" if misdirected else "is not an address of that machine"
        yield about(
            unreachable_owners,
            f"{unreachable_owners[0].title} has rank 0, but MASTER_ADDR={unreachable_owners[0].master_addr} {where}",
            "nodes.is_at_master",
            str(unreachable_owners[0].master_addr),
            unreachable_owners[0].host,
        )
    elif misdirected and not owners and len(nodes.nodes) == 1 and not nodes.is_main:
        node = misdirected[0]
        yield about(
            misdirected,
            f"MASTER_ADDR={node.master_addr} is {node.title}, which does not have rank 0",
            "nodes.is_at_master",
            str(node.master_addr),
            "an address of rank 0's node",
        )


def ports_differ(nodes: Nodes) -> Iterator[Finding]:
    """ENV019, for ranks."""
    ports = split((n for n in nodes.nodes if _by_value(n.form, n.launcher)), lambda node: _text(node.master_port))
    if ports is not None:
        yield differs(ports, "the master port", "master_port")


def addresses_differ(nodes: Nodes) -> Iterator[Finding]:
    """ENV020, for ranks: different values for the master, which did not resolve to the node that the others mean."""
    by_value = [node for node in nodes.nodes if _by_value(node.form, node.launcher)]
    addresses = split(by_value, lambda node: node.master_addr)
    host = nodes.nodes[nodes.hosted_by] if nodes.nodes else None
    if addresses is not None and any(n.came != "main" and host and n.master_addr != host.master_addr for n in by_value):
        yield differs(addresses, "the master address", "master_addr")


def _by_value(form: str, launcher: str) -> bool:
    return form == Form.ENV or launcher == "accelerate"


def _is_loopback(address: str | None) -> bool:
    return address is not None and is_loopback(address)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
