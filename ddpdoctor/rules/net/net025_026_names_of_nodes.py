"""NET025, NET026, and what NET013 says of a meeting: what the nodes' own names are to each other."""

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
    "[enforce fail at …/gloo/transport/tcp/device.cc] ss1.ss_family == ss2.ss_family. 2 vs 10": 2 is IPv4, 10 is IPv6. The
    hostname of one node resolves to an IPv4 address first, that of another to an IPv6 address.

    ## Fix
    Set GLOO_SOCKET_IFNAME on every node to an interface with IPv4 only, or bring the order of /etc/gai.conf and /etc/hosts
    to the same state on all nodes.
    """
    known = [node for node in nodes.nodes if node.gloo_address]
    if len(known) < 2:
        not_here("fewer than two nodes told which address Gloo would publish")
    found = split(known, lambda node: "IPv6" if ":" in (node.gloo_address or "") else "IPv4")
    if found is not None:
        yield differs(found, "the family of the address that Gloo publishes", "gloo_address")


@cause(
    "NET026", "duplicate-hostname", Severity.ERROR, explains=("NET012", "NET046"), signatures=(r"Fatal IPC Failure",)
)
def duplicate_hostname(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes report the same hostname.

    ## Why it matters
    Libraries that tell machines apart by name take two for one and try shared memory or CUDA IPC between them: "Fatal IPC
    Failure", or an error of peer access between GPUs of different nodes. Cloned images and containers called localhost.

    ## Fix
    Give each node a hostname of its own, or set NCCL_HOSTID to another value on each node.
    """
    groups: dict[str, dict[str, Node]] = {}
    for node in nodes.nodes:
        if node.machine:
            groups.setdefault(node.host, {})[node.machine] = node
    for host, machines in groups.items():
        if len(machines) > 1:
            told = ", ".join(sorted(each.addresses[0] for each in machines.values() if each.addresses)[:8])
            yield Finding(
                f"{len(machines)} machines are called {host}{f' ({told})' if told else ''}: expected a name of its own for"
                " each",
                (Evidence("nodes.host", host, "different names"),),
                where=Where(host=host),
                fix_command="hostnamectl set-hostname NAME",
            )


def unknown_to_others(nodes: Nodes) -> Iterator[Finding]:
    """NET013: with c10d the workers look for the name of the node that sorts first, and some nodes do not know it."""
    named_nodes = [(node.full_name or node.host, index) for index, node in enumerate(nodes.nodes)]
    if nodes.form != Form.C10D or not nodes.links or len(named_nodes) < 2:
        return
    name, head = min(named_nodes)
    target = nodes.nodes[head]
    asked = [link for link in nodes.links if link.target == head and link.name]
    wrong = [link for link in asked if not set(link.resolved) & {*target.addresses, name}]
    if not wrong:
        return
    lost = [nodes.nodes[link.source] for link in wrong]
    seen = ", ".join(wrong[0].resolved[:3]) or "nothing"
    is_sure = any(all(map(is_loopback, link.resolved)) for link in wrong)  # another address may still lead there
    yield about(
        [target] if len(wrong) == len(asked) > 1 else lost,
        f"c10d will tell the workers to meet at {name}, and on {named(lost)} that name leads to {seen}: expected"
        f" {', '.join(target.addresses[:3])}",
        "nodes.links.resolved",
        seen,
        ", ".join(target.addresses[:3]),
        fix_command=f"--local-addr={target.addresses[0]}" if target.addresses else None,
    ).if_certain(is_sure)
