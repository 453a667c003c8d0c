"""NET025, NET026, and NET013 in the multi-node check: the names and addresses of nodes compared with each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.net import is_loopback
from ddpdoctor.facts.nodes import Form, Node, Nodes, split
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import about, differs, named

__all__ = ["duplicate_hostname", "gloo_address_family_mixed", "unknown_to_others"]


@cause(
    "NET025",
    "gloo-address-family-mixed",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    signatures=(r"ss1\.ss_family == ss2\.ss_family", r"ss_family == ss2?\.ss_family\. (2 vs 10|10 vs 2)"),
)
def gloo_address_family_mixed(nodes: Nodes) -> Iterator[Finding]:
    """One rank's Gloo publishes an IPv4 address and another's an IPv6 address.

    ## Why it matters
    Gloo fails with `ss1.ss_family == ss2.ss_family. 2 vs 10`, where 2 is IPv4 and 10 is IPv6. The hostname resolves to an IPv4
    address first on one node, and to an IPv6 address first on another.

    ## Fix
    Set GLOO_SOCKET_IFNAME on every node to an interface with IPv4 only, or use the same order in /etc/gai.conf and
    /etc/hosts on all nodes.

    ## Example
    In the log:

        [enforce fail at .../gloo/transport/tcp/device.cc] ss1.ss_family == ss2.ss_family. 2 vs 10

    In /etc/gai.conf on every node:

        # before
        #precedence ::ffff:0:0/96  10
        # after
        precedence ::ffff:0:0/96  100
    """
    known = [node for node in nodes.nodes if node.gloo_address]
    if len(known) < 2:
        not_here("the address that Gloo would publish is known for fewer than two nodes")
    groups = split(known, lambda node: "IPv6" if ":" in (node.gloo_address or "") else "IPv4")
    if groups is not None:
        yield differs(groups, "the address family that Gloo uses", "gloo_address")


@cause(
    "NET026", "duplicate-hostname", Severity.ERROR, explains=("NET012", "NET046"), signatures=(r"Fatal IPC Failure",)
)
def duplicate_hostname(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes report the same hostname.

    ## Why it matters
    Libraries that identify machines by name treat the two as one, and try shared memory or CUDA IPC between them:
    `Fatal IPC Failure`, or a peer access error between GPUs of different nodes. This happens with cloned images and containers
    called localhost.

    ## Fix
    Give each node a different hostname (`hostnamectl set-hostname NAME`), or set NCCL_HOSTID to a different value on each node.

    ## Example
    In the log:

        RuntimeError: Fatal IPC Failure

    On the second of the two nodes, as root:

        # before
        hostname
        node0
        # after
        hostnamectl set-hostname node1
    """
    groups: dict[str, dict[str, Node]] = {}
    for node in nodes.nodes:
        if node.machine:
            groups.setdefault(node.host, {})[node.machine] = node
    for host, machines in groups.items():
        if len(machines) > 1:
            addresses = ", ".join(sorted(node.addresses[0] for node in machines.values() if node.addresses)[:8])
            yield Finding(
                f"{len(machines)} machines have the same hostname {host}{f' ({addresses})' if addresses else ''}",
                (Evidence("nodes.host", host, "different names"),),
                where=Where(host=host),
                fix_command="hostnamectl set-hostname NAME",
            )


def unknown_to_others(nodes: Nodes) -> Iterator[Finding]:
    """NET013: with c10d the workers resolve the name of the node that sorts first, and some nodes cannot resolve it."""
    named_nodes = [(node.full_name or node.host, index) for index, node in enumerate(nodes.nodes)]
    if nodes.form != Form.C10D or not nodes.links or len(named_nodes) < 2:
        return
    name, head = min(named_nodes)
    target = nodes.nodes[head]
    lookups = [link for link in nodes.links if link.target == head and link.name]
    wrong = [link for link in lookups if not set(link.resolved) & {*target.addresses, name}]
    if not wrong:
        return
    affected = [nodes.nodes[link.source] for link in wrong]
    resolved = ", ".join(wrong[0].resolved[:3])
    outcome = f"resolves to {resolved}" if resolved else "does not resolve"
    is_certain = any(all(map(is_loopback, link.resolved)) for link in wrong)  # another address may still reach the node
    yield about(
        [target] if len(wrong) == len(lookups) > 1 else affected,
        f"c10d will send the workers to {name}, which {outcome} on {named(affected)}",
        "nodes.links.resolved",
        resolved or "nothing",
        ", ".join(target.addresses[:3]),
        fix_command=f"--local-addr={target.addresses[0]}" if target.addresses else None,
    ).if_certain(is_certain)
