"""NET009 to NET011, NET023: the network between the nodes, as each of them tried it towards the others."""

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
    "gloo_elsewhere",
    "mtu_mismatch",
    "worker_store_port_blocked",
]

_WORDS = {
    ConnectOutcome.REFUSED: "refused",
    ConnectOutcome.NO_ANSWER: "dropped (no answer)",
    ConnectOutcome.NO_HOST: "no route to host",
    ConnectOutcome.NO_ROUTE: "no route",
    ConnectOutcome.PROHIBITED: "prohibited",
    ConnectOutcome.STRANGER: "answered by another machine",
    ConnectOutcome.SILENT: "accepted and then silent",
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
        r"(Connect to \S+|Call to connect) failed : (No route to|Connection timed out|Software caused connection abort)",
        r"returned (Connection timed out|No route to host), exceeded error retry count",
        r"unable to complete a TCP connection",
        r"socketPollConnect[^\n]*no POLLOUT events",
    ),
)
def data_ports_blocked(nodes: Nodes) -> Iterator[Finding]:
    """Only the master port is open between the nodes, or at one of them.

    ## Why it matters
    The rendezvous succeeds, so the network is declared healthy. Then Gloo says "Connect timeout [none]" after five times the
    timeout, and NCCL hangs or gets "No route to host": both listen at ports that the kernel chooses.

    ## Fix
    Open all TCP ports between the nodes of the job, not only the master port: the node's firewall, or the cloud's security
    group.
    """
    links = _tried(nodes)
    bad = [link for link in links if link.outcome is not None]
    culprits = _culprits(nodes, bad, links)
    if culprits is not None:
        yield _finding(nodes, bad, culprits, "connections to high ports fail", "open ports")


@cause("NET010", "data-ports-cut-between-nodes", Severity.ERROR, stage=CausalStage.REACHABILITY)
def data_ports_cut_between_nodes(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes cannot reach each other's ports, while each of them reaches others.

    ## Why it matters
    A healthy rank that waits for one of the two fails first and looks guilty; the pair itself fails minutes later.

    ## Fix
    Open all TCP ports between these two nodes: look for a firewall rule for single addresses, or a route that one of them lacks.
    """
    links = _tried(nodes)
    bad = [link for link in links if link.outcome is not None]
    if not bad or _culprits(nodes, bad, links) is not None:
        return
    for pair in _pairs(bad)[:MOST_PAIRS]:
        found = [link for link in bad if {link.source, link.target} == set(pair)]
        yield _finding(nodes, found, [nodes.nodes[i] for i in pair], "connections to high ports fail", "open ports")


@cause("NET011", "worker-store-port-blocked", Severity.ERROR, stage=CausalStage.REACHABILITY)
def worker_store_port_blocked(nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """The second store port of a c10d launch, a random one on the node of group rank 0, is closed.

    ## Why it matters
    The agents meet, and then the workers time out "while trying to connect to" a port that nobody typed: c10d gives them a
    store of their own at a port that the kernel chooses.

    ## Fix
    Open the ephemeral ports between the nodes, or use static rendezvous with a fixed --master-port.
    """
    if probe is not None and is_second_store(probe):
        kinds = (Kind.SILENT, Kind.PORT_DROPPED, Kind.PORT_REJECTED)
        yield from observed(probe.seen(*kinds), expected="an open port: the agents have met already")
    if nodes is None and probe is not None:
        return
    if nodes is None:
        not_here("no meeting of nodes")
    links = _tried(nodes)
    if nodes.form != Form.C10D:
        not_here("no c10d rendezvous")
    bad = [link for link in links if link.outcome is not None and link.target == 0]
    if bad:
        found = _finding(
            nodes, bad, [nodes.nodes[0]], "the workers' store on group rank 0's node is out of reach", "open"
        )
        yield replace(found, role=Role.CONSEQUENCE, caused_by=data_ports_blocked.code)


@cause(
    "NET023",
    "mtu-mismatch",
    Severity.ERROR,
    candidates=("NET023", "NET033"),
    stage=CausalStage.REACHABILITY,
    signatures=(r"writev \[[^\]]*\]:\d+: Connection timed out", r"local access violation work queue error"),
)
def mtu_mismatch(nodes: Nodes) -> Iterator[Finding]:
    """Small packets pass between the nodes and large ones vanish.

    ## Why it matters
    ping, the rendezvous and small collectives work. The first large tensor hangs and ends after twenty seconds with "writev …:
    Connection timed out". A card, a switch port or a tunnel on the way has a smaller MTU than the cards believe.

    ## Fix
    Give all cards and switch ports of the path one MTU; ping -M do -s 8972 HOST shows whether 9000 bytes pass, -s 1472
    whether 1500 do.
    """
    links = _tried(nodes)
    bad = [link for link in links if link.is_echoed is False]
    if not bad:
        return
    culprits = _culprits(nodes, bad, links)
    sizes = {nodes.nodes[i].traits.get("net.mtu") for link in bad for i in (link.source, link.target)} - {None}
    told = f"; their MTU is {', '.join(sorted(str(s) for s in sizes))}" if sizes else ""
    if culprits is None:
        culprits = [nodes.nodes[i] for i in _pairs(bad)[0]]
    yield _finding(nodes, bad, culprits, f"32 KiB do not come back although small messages do{told}", "an echo")


def _tried(nodes: Nodes) -> list[NodeLink]:
    """The links that were tried, but for those to an address of Gloo's that only NET024 has something to say about.

    Raises:
        CannotLook: none was.
    """
    links = [link for link in nodes.links if link.address]
    if not links:
        not_here("the network between the nodes was not tried")
    return [link for link in links if not _is_gloos_fault(nodes, link)]


def gloo_elsewhere(nodes: Nodes) -> Iterator[Finding]:
    """NET024: nobody reaches a node at the address that Gloo would publish, and others reach it at another one."""
    lost = [link for link in nodes.links if _is_gloos_fault(nodes, link)]
    for index in dict.fromkeys(link.target for link in lost):
        target = nodes.nodes[index]
        sources = [nodes.nodes[link.source] for link in lost if link.target == index]
        yield Finding(
            f"Gloo takes {target.gloo_address} on {target.title}, which {named(sources)} cannot reach, while its address"
            f" {_other(target)} can be reached: expected an address on a network that the nodes share",
            (Evidence(f"nodes[{target.title}].gloo_address", target.gloo_address or "", _other(target) or ""),),
            where=place([target]),
        )


def _is_gloos_fault(nodes: Nodes, link: NodeLink) -> bool:
    """Whether a link fails only because of the address that Gloo chose: the same node reaches the target at another one."""
    target = nodes.nodes[link.target]
    if link.outcome is None or link.address != target.gloo_address or _other(target) is None:
        return False
    return any((x.source, x.target) == (link.source, link.target) and x.works for x in nodes.links)


def _other(node: Node) -> str | None:
    """The first address that NCCL would use, where it is not Gloo's."""
    first = node.nccl_addresses[0].partition("/")[0] if node.nccl_addresses else None
    return first if first != node.gloo_address else None


def _pairs(links: Sequence[NodeLink]) -> list[tuple[int, int]]:
    """The pairs of nodes that links connect, in either direction, each once."""
    return list(dict.fromkeys((min(x.source, x.target), max(x.source, x.target)) for x in links))


def _culprits(nodes: Nodes, bad: Sequence[NodeLink], links: Sequence[NodeLink]) -> list[Node] | None:
    """The nodes to blame: those none of whose links works. All of them, when that is so everywhere; None for single pairs."""
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


def _finding(nodes: Nodes, bad: Sequence[NodeLink], culprits: Sequence[Node], what: str, expected: str) -> Finding:
    pairs = _pairs(bad)
    both = {(link.source, link.target) for link in bad}
    one_way = [pair for pair in pairs if not ((pair[0], pair[1]) in both and (pair[1], pair[0]) in both)]
    first = bad[0]
    source, target = nodes.nodes[first.source], nodes.nodes[first.target]
    how = _WORDS.get(first.outcome, first.outcome.value) if first.outcome else "connected, but the echo was lost"
    shown = f"{source.host} -> {target.host} at {first.address}:{first.port}: {how}"
    more = f", and {len(bad) - 1} more of {len(nodes.links)} links" if len(bad) > 1 else ""
    direction = ", in one direction only" if one_way and len(pairs) == 1 else ""
    if len(culprits) == 2 or len(pairs) == 1:
        a, b = (nodes.nodes[i] for i in pairs[0])
        who = f"between {a.title} and {b.title}{direction}"
        blamed, other = (target, source) if direction else (a, b)  # who lets nothing in, where that can be told
        where = Where(host=blamed.host, node_rank=blamed.node_rank, peer=other.host)
    elif len(culprits) == 1:
        who = f"between {culprits[0].title} and the other nodes"
        where = place(culprits)
    else:
        who, where = "between the nodes", Where()
    return Finding(
        f"{what} {who} ({shown}{more}), while the master port is open",
        tuple(
            Evidence(
                f"nodes.links[{nodes.nodes[x.source].host}->{nodes.nodes[x.target].host}]",
                _WORDS.get(x.outcome, x.outcome.value) if x.outcome else "echo lost",
                expected,
            )
            for x in bad[:16]
        ),
        where=where,
    )


EPHEMERAL = (32768, 60999)
"""The ports that Linux gives to NCCL, to Gloo and to the second store of c10d."""


@data_ports_blocked.look
def only_some_open(launch: Launch) -> Iterator[Finding]:
    """The policies open the master port and not the random ones of NCCL and Gloo."""
    for line, pod, port in closing_policies(launch):
        if not is_shut(pod, port) and not covers(pod, EPHEMERAL):
            text = f"between the job's pods the policy opens {open_ports_text(pod)} alone, and NCCL and Gloo choose random ones"
            yield policy_finding(line, pod, f"{text}: expected all TCP ports between the pods of the job")


@worker_store_port_blocked.look
def published(launch: Launch) -> Iterator[Finding]:
    """A container that publishes the endpoint's port alone, with the c10d rendezvous."""
    for line, _, plan in agents(launch):
        box = container_of(line)
        if box is None or not box.is_bridged or not plan.is_multinode or plan.backend != "c10d" or plan.is_standalone:
            continue
        if plan.port not in box.ports or len(box.ports) > 100:
            continue
        text = (
            f"the container publishes {len(box.ports)} port{'s' * (len(box.ports) > 1)}, {plan.port} among them, and c10d "
            "gives the workers a second, random one: expected --network=host"
        )
        word = next((g.value_word for g in box.layer.reading.given if g.flag in ("-p", "--publish")), box.run)
        edits = [
            replace_word(w, "--network=host")
            for w in [word]
            if w is not box.run and "=" in w.text and w.text.startswith("-")
        ]
        yield point(launch, line, word, text, "--network=host", edits or None)


NO_ANSWER = re.compile(r"Connection timed out|no POLLOUT events|unable to complete a TCP connection")


NO_ANSWER_TITLE = "A rank got no answer from another one"


UNSURE_PORTS = (
    "Undetermined: only the master port is open between the nodes (NET009), the address "
    "is that of an interface which leads to no other node (NET021), or the other machine was gone"
)


@data_ports_blocked.look
def unanswered(log: Log) -> Iterator[Finding]:
    """Ports that give no answer; that a machine refuses, or has no route, is more than that."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for found in signed(data_ports_blocked, log):
        is_open = all(NO_ANSWER.search(each.seen or "") for each in found.evidence)
        yield retitled(found, NO_ANSWER_TITLE, UNSURE_PORTS) if is_open else found


@mtu_mismatch.look
def large_packets_lost(log: Log) -> Iterator[Finding]:
    """Large messages that were not acknowledged, or a work request that the adapter refused, for which MTUs are one reason."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, (r"writev \[[^\]]*\]:\d+: Connection timed out",))
    if lines:
        yield finding_of(log, lines, "Small packets pass between the nodes and large ones vanish", blames_speaker=True)
    refused = matching_lines(log, (r"local access violation work queue error",))
    if refused:
        undetermined = (
            "Undetermined: MTUs that differ between the ends (NET023), or memory that the card may not read (NET033); "
            "NCCL_NET_GDR_LEVEL=LOC for one run decides"
        )
        title = "An RDMA adapter refused a work request"
        yield finding_of(log, refused, title, undetermined, blames_speaker=True)
