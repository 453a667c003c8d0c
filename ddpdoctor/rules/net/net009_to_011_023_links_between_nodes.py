"""NET009 to NET011, NET023: the network between the nodes, as tested from each node to the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Form, Node, NodeLink, Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.findings import CausalStage, Evidence, Finding, Role, Severity, Where
from ddpdoctor.launch.container import container_of
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.manifest.network_policies import (
    closing_policies,
    covers,
    is_shut,
    open_ports_text,
    policy_finding,
)
from ddpdoctor.rules.launch.pointing import agents, point, replace_word
from ddpdoctor.rules.node_findings import named, place
from ddpdoctor.rules.observation_findings import is_second_store, observed

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = [
    "data_ports_blocked",
    "data_ports_cut_between_nodes",
    "mtu_mismatch",
    "unreachable_gloo_addresses",
    "worker_store_port_blocked",
]

_OUTCOMES = {
    ConnectOutcome.REFUSED: "refused",
    ConnectOutcome.NO_ANSWER: "dropped",
    ConnectOutcome.NO_HOST: "no route to host",
    ConnectOutcome.NO_ROUTE: "no route",
    ConnectOutcome.PROHIBITED: "prohibited",
    ConnectOutcome.STRANGER: "answered by another machine",
    ConnectOutcome.SILENT: "accepted, then no answer",
}
MOST_PAIRS = 8


@cause(
    "NET009",
    "data-ports-blocked",
    Severity.ERROR,
    candidates=("NET009", "NET021"),
    stage=CausalStage.REACHABILITY,
    yields_to=("NET021",),
    signatures=(
        r"SO_ERROR: (Connection timed out|No route to host)",
        r"returned 113\(No route to host\)",
        r"connect returned No route to host",
        r"([Cc]onnect to \S+|Call to connect) failed : (No route to|Connection timed out|Software caused connection abort)",
        r"returned (Connection timed out|No route to host), exceeded error retry count",
        r"unable to complete a TCP connection",
        r"socketPollConnect[^\n]{0,300}no POLLOUT events",
    ),
)
def data_ports_blocked(nodes: Nodes) -> Iterator[Finding]:
    """Only the master port is open between the nodes.

    ## Why it matters
    The rendezvous succeeds, so the network looks healthy. Then Gloo fails with `Connect timeout [none]` after five times the
    timeout, and NCCL hangs or fails with `No route to host`: both listen on ports that the kernel chooses.

    ## Fix
    Open all TCP ports between the nodes of the job, not only the master port, in each node's firewall, the cloud's
    security group, or the NetworkPolicy of the pods.

    ## Example
    In the log of rank 0:

        socketPollConnect: Connect to 10.20.0.11<43251> returned 113(No route to host), exceeded error retry count

    On every node, as root (firewalld), for the job's subnet:

        # before
        firewall-cmd --add-port=29500/tcp
        # after
        firewall-cmd --permanent --add-rich-rule='rule family=ipv4 source address=10.20.0.0/24 accept'
        firewall-cmd --reload
    """
    links = _tried(nodes)
    bad = [link for link in links if link.outcome is not None]
    culprits = _culprits(nodes, bad, links)
    if culprits is not None:
        yield _finding(nodes, bad, culprits, "high ports are blocked", "open ports")


@cause("NET010", "data-ports-cut-between-nodes", Severity.ERROR, stage=CausalStage.REACHABILITY)
def data_ports_cut_between_nodes(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes cannot connect to each other, but can connect to other nodes.

    ## Why it matters
    A healthy rank that waits for one of the two fails first and looks like the cause. The pair itself fails minutes later.

    ## Fix
    Open all TCP ports between these two nodes: look for a firewall rule for single addresses, or a route missing on one of
    them.

    ## Example
    ddpdoctor's message:

        high ports are blocked between node 1 (node1) and node 2 (node2): 10.20.0.12:40000 dropped

    On node 1 (10.20.0.11), with node 2 being 10.20.0.12:

        ip route get 10.20.0.12
        iptables -L -n | grep 10.20.0.12
    """
    links = _tried(nodes)
    bad = [link for link in links if link.outcome is not None]
    if not bad or _culprits(nodes, bad, links) is not None:
        return
    for pair in _pairs(bad)[:MOST_PAIRS]:
        links_of_pair = [link for link in bad if {link.source, link.target} == set(pair)]
        yield _finding(nodes, links_of_pair, [nodes.nodes[i] for i in pair], "high ports are blocked", "open ports")


@cause("NET011", "worker-store-port-blocked", Severity.ERROR, stage=CausalStage.REACHABILITY)
def worker_store_port_blocked(nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """The second store port of a c10d launch is closed.

    ## Why it matters
    c10d gives the workers a store of their own, on a random port of the node with group rank 0. The agents join, but then the
    workers time out `while trying to connect to` a port that is not in the launch command.

    ## Fix
    Open the ephemeral ports between the nodes, or use static rendezvous with a fixed `--master-port` on every node.

    ## Example
    In the log of a worker on node 1:

        The client socket has timed out after 600000ms while trying to connect to (node0, 43251).

    On every node (N is 0 on the first, 1 on the second):

        # before
        torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py
        # after
        torchrun --nnodes 2 --node-rank N --master-addr node0 --master-port 29500 train.py
    """
    if probe is not None and is_second_store(probe):
        kinds = (Kind.SILENT, Kind.PORT_DROPPED, Kind.PORT_REJECTED)
        yield from observed(probe.seen(*kinds), expected="an open port: the agents have already joined")
    if nodes is None and probe is not None:
        return
    if nodes is None:
        not_here("no multi-node check")
    links = _tried(nodes)
    if nodes.form != Form.C10D:
        not_here("no c10d rendezvous")
    bad = [link for link in links if link.outcome is not None and link.target == 0]
    if bad:
        finding = _finding(nodes, bad, [nodes.nodes[0]], "the port of the workers' store is blocked", "open")
        yield replace(finding, role=Role.CONSEQUENCE, caused_by=data_ports_blocked.code)


@cause(
    "NET023",
    "mtu-mismatch",
    Severity.ERROR,
    candidates=("NET023", "NET033"),
    stage=CausalStage.REACHABILITY,
    signatures=(r"writev \[[^\]]{0,100}\]:\d+: Connection timed out", r"local access violation work queue error"),
)
def mtu_mismatch(nodes: Nodes) -> Iterator[Finding]:
    """Small packets pass between the nodes, but large ones are lost.

    ## Why it matters
    ping, the rendezvous and small collectives work, but the first large tensor hangs and fails after twenty seconds with
    `writev …: Connection timed out`. A NIC, a switch port or a tunnel on the path has a smaller MTU than the sending NICs use.

    ## Fix
    Set one MTU on all NICs and switch ports of the path. From one node to the other, `ping -M do -s 8972 HOST` shows whether
    9000 bytes pass, `-s 1472` whether 1500 do.

    ## Example
    In the log:

        gloo::IoException: writev [10.20.0.11]:43251: Connection timed out

    On all nodes, as root, if the switch passes only 1500 bytes:

        # before
        ip link show eth0
        2: eth0: <BROADCAST,MULTICAST,UP> mtu 9000
        # after
        ip link set eth0 mtu 1500
    """
    links = _tried(nodes)
    bad = [link for link in links if link.is_echoed is False]
    if not bad:
        return
    culprits = _culprits(nodes, bad, links)
    sizes = {nodes.nodes[i].traits.get("net.mtu") for link in bad for i in (link.source, link.target)} - {None}
    mtu = f" (MTU {', '.join(sorted(str(s) for s in sizes))})" if sizes else ""
    if culprits is None:
        culprits = [nodes.nodes[i] for i in _pairs(bad)[0]]
    yield _finding(nodes, bad, culprits, f"messages of 32 KiB are lost{mtu}", "an echo")


def _tried(nodes: Nodes) -> list[NodeLink]:
    """The links that were tested, except those that fail only because of Gloo's address (NET024).

    Raises:
        CannotLook: none was tested.
    """
    links = [link for link in nodes.links if link.address]
    if not links:
        not_here("the network between the nodes was not tested")
    return [link for link in links if not _is_gloos_fault(nodes, link)]


def unreachable_gloo_addresses(nodes: Nodes) -> Iterator[Finding]:
    """NET024: nodes that the others can reach, but not at the address that Gloo would publish."""
    failed = [link for link in nodes.links if _is_gloos_fault(nodes, link)]
    for index in dict.fromkeys(link.target for link in failed):
        target = nodes.nodes[index]
        sources = [nodes.nodes[link.source] for link in failed if link.target == index]
        yield Finding(
            f"Gloo uses {target.gloo_address} on {target.title}, which {named(sources)} cannot reach;"
            f" {_other(target)} is reachable",
            (Evidence(f"nodes[{target.title}].gloo_address", target.gloo_address or "", _other(target) or ""),),
            where=place([target]),
        )


def _is_gloos_fault(nodes: Nodes, link: NodeLink) -> bool:
    """Whether a link fails only because of Gloo's address: the same node reaches the target at another address."""
    target = nodes.nodes[link.target]
    if link.outcome is None or link.address != target.gloo_address or _other(target) is None:
        return False
    return any((x.source, x.target) == (link.source, link.target) and x.works for x in nodes.links)


def _other(node: Node) -> str | None:
    """The first address that NCCL would use, if it is not Gloo's."""
    first = node.nccl_addresses[0].partition("/")[0] if node.nccl_addresses else None
    return first if first != node.gloo_address else None


def _pairs(links: Sequence[NodeLink]) -> list[tuple[int, int]]:
    """The pairs of nodes that links connect, in either direction, each once."""
    return list(dict.fromkeys((min(x.source, x.target), max(x.source, x.target)) for x in links))


def _culprits(nodes: Nodes, bad: Sequence[NodeLink], links: Sequence[NodeLink]) -> list[Node] | None:
    """The nodes without a working link; all nodes if no link works anywhere; None if only single pairs fail."""
    if not bad:
        return None
    broken = set(_pairs(bad))
    partners: dict[int, set[tuple[int, int]]] = {}
    for pair in _pairs(links):
        for index in pair:
            partners.setdefault(index, set()).add(pair)
    cut_off = [index for index, pairs in partners.items() if pairs <= broken]
    healthy = [index for index in partners if index not in cut_off]
    if not cut_off:
        return None
    if all(pair[0] in cut_off or pair[1] in cut_off for pair in broken):
        return [nodes.nodes[i] for i in sorted(cut_off)] if healthy or len(partners) == 2 else list(nodes.nodes)
    return None


def _finding(nodes: Nodes, bad: Sequence[NodeLink], culprits: Sequence[Node], problem: str, expected: str) -> Finding:
    pairs = _pairs(bad)
    both = {(link.source, link.target) for link in bad}
    one_way = [pair for pair in pairs if not ((pair[0], pair[1]) in both and (pair[1], pair[0]) in both)]
    first = bad[0]
    source, target = nodes.nodes[first.source], nodes.nodes[first.target]
    outcome = _OUTCOMES.get(first.outcome, first.outcome.value) if first.outcome else "echo lost"
    more = f", and {len(bad) - 1} more of {len(nodes.links)} links" if len(bad) > 1 else ""
    direction = ", in one direction only" if one_way and len(pairs) == 1 else ""
    if len(culprits) == 2 or len(pairs) == 1:
        a, b = (nodes.nodes[i] for i in pairs[0])
        between = f"between {a.title} and {b.title}{direction}"
        blamed, other = (target, source) if direction else (a, b)  # the node that accepts no connection, if known
        where = Where(host=blamed.host, node_rank=blamed.node_rank, peer=other.host)
    elif len(culprits) == 1:
        between = f"between {culprits[0].title} and the other nodes"
        where = place(culprits)
    else:
        between, where = "between the nodes", Where()
    return Finding(
        f"{problem} {between}: {first.address}:{first.port} {outcome}{more}",
        tuple(
            Evidence(
                f"nodes.links[{nodes.nodes[x.source].host}->{nodes.nodes[x.target].host}]",
                _OUTCOMES.get(x.outcome, x.outcome.value) if x.outcome else "echo lost",
                expected,
            )
            for x in bad[:16]
        ),
        where=where,
    )


EPHEMERAL = (32768, 60999)
"""The ports that Linux assigns to NCCL, to Gloo and to the second store of c10d."""


@data_ports_blocked.look
def only_some_ports_open(launch: Launch) -> Iterator[Finding]:
    """The policies open the master port, but not the random ports of NCCL and Gloo."""
    for line, pod, port in closing_policies(launch):
        if not is_shut(pod, port) and not covers(pod, EPHEMERAL):
            text = (
                f"the network policy opens only {open_ports_text(pod)} between the pods; NCCL and Gloo use random ports"
            )
            yield replace(policy_finding(line, pod, text), label="allow all TCP between the pods")


@worker_store_port_blocked.look
def only_endpoint_port_published(launch: Launch) -> Iterator[Finding]:
    """A container that publishes only the endpoint's port, with the c10d rendezvous."""
    for line, _, plan in agents(launch):
        container = container_of(line)
        if container is None or not container.is_bridged or plan.is_standalone:
            continue
        if not plan.is_multinode or plan.backend != "c10d":
            continue
        if plan.port not in container.ports or len(container.ports) > 100:
            continue
        ports = f"port {plan.port}" if len(container.ports) == 1 else f"{len(container.ports)} ports"
        text = f"the container publishes only {ports}; c10d gives the workers a second, random port"
        word = next(
            (g.value_word for g in container.layer.reading.given if g.flag in ("-p", "--publish")), container.run
        )
        edits = [
            replace_word(w, "--network=host")
            for w in [word]
            if w is not container.run and "=" in w.text and w.text.startswith("-")
        ]
        expected = "--network=host"
        yield point(launch, line, word, text, expected, edits or None, label=f"use {expected}")


NO_ANSWER = re.compile(r"Connection timed out|no POLLOUT events|unable to complete a TCP connection")


NO_ANSWER_TITLE = "A rank got no answer from another rank"


PORTS_OR_INTERFACE = (
    "Either only the master port is open between the nodes (NET009), the address belongs to an interface that "
    "the other nodes cannot reach (NET021), or the other machine was down; `ddpdoctor check -- LAUNCH` on every node decides"
)


@data_ports_blocked.look
def no_answer_in_log(log: Log) -> Iterator[Finding]:
    """Connections without an answer, which leave the reason open; a refusal or a missing route does not."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for finding in signed(data_ports_blocked, log):
        is_open = all(NO_ANSWER.search(line.seen or "") for line in finding.evidence)
        yield retitled(finding, NO_ANSWER_TITLE, PORTS_OR_INTERFACE) if is_open else finding


@mtu_mismatch.look
def large_packets_lost(log: Log) -> Iterator[Finding]:
    """Large messages that were not acknowledged, or a work request that the adapter refused, possibly because of the MTU."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, (r"writev \[[^\]]{0,100}\]:\d+: Connection timed out",))
    if lines:
        yield finding_of(
            log, lines, "Small packets pass between the nodes, but large ones are lost", blames_speaker=True
        )
    refused = matching_lines(log, (r"local access violation work queue error",))
    if refused:
        undetermined = (
            "Either the MTUs of the two ends differ (NET023), or the adapter cannot read the GPU memory (NET033); "
            "one run with NCCL_NET_GDR_LEVEL=LOC decides"
        )
        title = "An RDMA adapter refused a work request"
        yield finding_of(log, refused, title, undetermined, blames_speaker=True)
