"""NET002 to NET008: why this node cannot reach the master."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.addresses import is_ip, malformation
from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.reachability import Attempt, ConnectOutcome
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import CausalStage, Evidence, Finding, Role, Severity, Speaker, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.env012_014_to_017_master_address import master_addr_malformed
from ddpdoctor.rules.launch.manifest.network_policies import closing_policies, is_shut, open_ports_text, policy_finding
from ddpdoctor.rules.launch.manifest.places import manifest_place
from ddpdoctor.rules.launch.submitted import at_mark, masters_of
from ddpdoctor.rules.net import reachability_findings
from ddpdoctor.rules.net.net021_022_024_chosen_interface import no_socket_interface
from ddpdoctor.rules.node_findings import only_met
from ddpdoctor.rules.observation_findings import is_second_store, observed, only_probed

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = [
    "master_addr_swallows_packets",
    "master_addr_unresolvable",
    "master_addr_without_host",
    "master_port_dropped",
    "master_port_rejected",
    "no_route_to_master",
    "store_unreachable",
]


@cause(
    "NET002",
    "master-addr-unresolvable",
    Severity.ERROR,
    explains=("ENV020", "NET003", "PROBE001"),
    yields_to=("LAUNCH077",),
    speaker=Speaker.TORCH,
    signatures=(
        r"gai error: -\d+",
        r"host not found: Name or service not known",
        r"nodename nor servname",
        r"Temporary failure in name resolution",
        r"nslookup: can't resolve '",
    ),
)
def master_addr_unresolvable(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """This node cannot resolve MASTER_ADDR.

    ## Why it matters
    Every rank on this node repeats `The IPv6 network addresses of (HOST, PORT) cannot be retrieved (gai error: -2 - Name or
    service not known)` for up to 30 minutes. Newer releases end with a plain timeout that does not mention the name.

    ## Fix
    Set MASTER_ADDR to the IP address of rank 0's node on all nodes, or add the name to DNS or to /etc/hosts of this node.

    ## Example
    In the log:

        The IPv6 network addresses of (node-99, 29500) cannot be retrieved (gai error: -2 - Name or service not known).

    On all nodes:

        # before
        export MASTER_ADDR=node-99
        # after
        export MASTER_ADDR=10.20.0.10
    """
    is_malformed = environ is not None and malformation(environ.master_addr or "") is not None  # ENV016 reports it
    for finding in observed(probe.seen(Kind.UNRESOLVABLE) if probe else ()):
        yield replace(finding, role=Role.CONSEQUENCE, caused_by=master_addr_malformed.code) if is_malformed else finding
    if only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    lookup = net.master_name
    if lookup is None or lookup.addresses or is_malformed:
        return
    if lookup.name == net.hostname:
        return  # NET014: this machine cannot resolve its own name
    yield Finding(
        f"MASTER_ADDR={shorten(lookup.name)} cannot be resolved on this node ({lookup.error or 'no address'}, "
        f"after {lookup.seconds:.1f} s)",
        evidence=(Evidence("net.master_name.error", lookup.error or "no address", "at least one address"),),
        severity=Severity.WARNING if lookup.is_late else None,
    )


@cause(
    "NET003",
    "store-unreachable",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(
        r"client socket has timed out after \d+m?s while trying to connect to",
        r"\b\d+/\d+ clients joined",
        r"\bconnect\(\) timed out\.",
        r"server socket on \[[^\]]{0,100}\]:\d+ has timed out, will retry",
        r"failed to connect to \S+ \(errno: 113 - No route to host\)",
        r"failed to connect to \S+ \(errno: 11[01] - Connection (timed out|refused)\)",
        r"failed to connect to \S+ \(system error: 100(?:49|5[014]|6[015]) - ",
        r"failed to connect to any network address of",
    ),
)
def store_unreachable(nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """A node cannot connect to the job's store.

    ## Why it matters
    The ranks of this node fail with `The client socket has timed out after …ms while trying to connect to (HOST, PORT)`.
    Other nodes print other messages, and none of them names the reason.

    ## Fix
    Run `nc -zv HOST PORT` on this node; check that HOST is an address of rank 0's node, that rank 0 runs there, and that
    the port is open.

    ## Example
    In the log of node 1:

        The client socket has timed out after 600000ms while trying to connect to (node0, 29500).

    On node 1, and then on node 0:

        getent hosts node0
        nc -zv node0 29500
        ddpdoctor ports
    """
    if nodes is None and probe is None:
        not_here("neither other nodes nor a probe were examined")
    if nodes is not None:
        yield from reachability_findings.other_failures(nodes)
    if probe is not None:
        yield from observed(probe.seen(Kind.UNREACHABLE), expected="the job's store")


@cause(
    "NET004",
    "master-addr-swallows-packets",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    explains=("ENV018", "ENV020", "NET007", "NET008", "PROBE001"),
)
def master_addr_swallows_packets(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """The master's address does not respond at all.

    ## Why it matters
    torch prints its first line after more than two minutes: `The server socket on [ADDR]:PORT has timed out, will retry.` The
    address is stale or wrong, or a firewall drops everything that is sent to it.

    ## Fix
    Set MASTER_ADDR on all nodes to an address of rank 0's node, on a network that all nodes of the job share.

    ## Example
    In the log:

        The server socket on [10.20.0.10]:29500 has timed out, will retry.

    On node 0, list its addresses; then on all nodes:

        # before
        export MASTER_ADDR=10.20.0.10
        # after
        export MASTER_ADDR=10.30.0.10
    """
    yield from observed(probe.seen(Kind.SILENT) if probe and not is_second_store(probe) else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ANSWER)
    if attempt is not None and not attempt.pings:
        yield _finding(
            net, attempt, f"{attempt.address} does not answer (no connection within {attempt.seconds:.1f} s, no ping)"
        )


@cause(
    "NET005",
    "master-addr-without-host",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    explains=("ENV018", "ENV020", "NET007", "NET008", "PROBE001"),
)
def master_addr_without_host(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """No machine on the local network has the master's address.

    ## Why it matters
    torch prints `errno: 113 - No route to host` within seconds and retries for 30 minutes. The subnet is right, but the
    machine is switched off, or the address is mistyped or stale.

    ## Fix
    Correct MASTER_ADDR on all nodes, and check that the node with rank 0 is up.

    ## Example
    In the log:

        The client socket has failed to connect to [10.20.0.10]:29500 (errno: 113 - No route to host).

    On this node:

        ping -c 1 10.20.0.10
        ip neigh show 10.20.0.10

    Then on all nodes:

        # before
        export MASTER_ADDR=10.20.0.10
        # after
        export MASTER_ADDR=10.20.0.11
    """
    yield from observed(probe.seen(Kind.MASTER_WITHOUT_HOST) if probe else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_HOST)
    if attempt is not None:
        yield _finding(net, attempt, f"no machine on the local network has the address {attempt.address}")


@cause(
    "NET006",
    "no-route-to-master",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    explains=("ENV018", "ENV020", "NET007", "NET008", "PROBE001"),
    signatures=(
        r"errno: 101 - Network is unreachable",
        r"failed to connect to \S+ \(errno: 22 - Invalid argument\)",
    ),
)
def no_route_to_master(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """This node has no route to the master's address.

    ## Why it matters
    torch prints `errno: 101 - Network is unreachable`, or `errno: 22 - Invalid argument` if a blackhole route is set, and
    retries until the timeout.

    ## Fix
    Add the route on this node, or set MASTER_ADDR on all nodes to an address in a network that this node can reach.

    ## Example
    In the log:

        The client socket has failed to connect to [10.20.0.10]:29500 (errno: 101 - Network is unreachable).

    On this node, as root:

        # before
        ip route get 10.20.0.10
        RTNETLINK answers: Network is unreachable
        # after
        ip route add 10.20.0.0/24 via 192.168.1.1
    """
    yield from observed(probe.seen(Kind.NO_ROUTE) if probe else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ROUTE)
    if attempt is not None:
        finding = _finding(net, attempt, f"this node has no route to {attempt.address} (errno {attempt.errno})")
        is_offline = all(name.startswith("lo") for name in net.running)
        yield replace(finding, role=Role.CONSEQUENCE, caused_by=no_socket_interface.code) if is_offline else finding


@cause("NET007", "master-port-dropped", Severity.ERROR, stage=CausalStage.REACHABILITY)
def master_port_dropped(
    net: Net | None = None, nodes: Nodes | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """The master answers ping, but packets to its port are dropped.

    ## Why it matters
    Names resolve and ping works, so the network looks healthy. torch prints its first line after two minutes:
    `The server socket on [ADDR]:PORT has timed out, will retry.`

    ## Fix
    Open the master port between the nodes of the job, in the firewall of the master's node, the security group, or the
    NetworkPolicy of the pods.

    ## Example
    In the log of node 1:

        The server socket on [10.20.0.10]:29500 has timed out, will retry.

    On node 0, as root (firewalld):

        firewall-cmd --permanent --add-rich-rule='rule family=ipv4 source address=10.20.0.0/24 accept'
        firewall-cmd --reload
    """
    if nodes is not None:
        yield from reachability_findings.dropped(nodes)
    if probe is not None and not is_second_store(probe):
        yield from observed(probe.seen(Kind.PORT_DROPPED), expected="an open port")
    if (net is None and probe is not None) or only_met(nodes, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ANSWER)
    if attempt is not None and attempt.pings:
        yield _finding(net, attempt, f"{attempt.address} answers ping, but packets to its port are dropped (firewall)")


@cause("NET008", "master-port-rejected", Severity.ERROR, stage=CausalStage.REACHABILITY)
def master_port_rejected(
    net: Net | None = None, nodes: Nodes | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """A firewall rejects connections to the master's port.

    ## Why it matters
    torch prints `errno: 113 - No route to host` although the route is fine, and retries until the timeout.

    ## Fix
    Open the master port between the nodes of the job, in the firewall of the master's node or the NetworkPolicy of the
    pods.

    ## Example
    In the log of node 1:

        The client socket has failed to connect to [10.20.0.10]:29500 (errno: 113 - No route to host).

    On node 0, as root (firewalld):

        firewall-cmd --permanent --add-rich-rule='rule family=ipv4 source address=10.20.0.0/24 accept'
        firewall-cmd --reload
    """
    if nodes is not None:
        yield from reachability_findings.rejected(nodes)
    if probe is not None and not is_second_store(probe):
        yield from observed(probe.seen(Kind.PORT_REJECTED), expected="an open port")
    if (net is None and probe is not None) or only_met(nodes, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.PROHIBITED)
    if attempt is not None:
        yield _finding(net, attempt, f"a firewall rejects connections to {attempt.address} (errno {attempt.errno})")


def _ended(net: Net, outcome: ConnectOutcome) -> Attempt | None:
    """The best attempt if it ended with this outcome; None if there was nothing to connect to.

    Raises:
        CannotLook: no attempt ended in time.
    """
    if net.is_master is not False:
        return None  # this node is the master, or the master is unknown: NET002
    if net.port is None:
        return None  # no port number to connect to: ENV015
    best = net.best_attempt
    if best is None:
        unanswered("the connection attempt to the master did not end in time")
    return best if best.outcome is outcome else None


def _finding(net: Net, attempt: Attempt, reason: str) -> Finding:
    return Finding(
        f"the master is unreachable: {reason}",
        evidence=(Evidence("net.attempts[0].outcome", attempt.outcome.value, "store or refused"),),
        where=Where(peer=_peer(net, attempt)),
    )


def _peer(net: Net, attempt: Attempt) -> str:
    """The short name of the machine that could not be reached, or its address if the name is unknown."""
    name = net.master_name.name if net.master_name is not None else attempt.address
    return attempt.address if is_ip(name) else name.partition(".")[0]


_BY_NAME = (Operator.PYTORCHJOB, Operator.TRAINJOB)


@master_addr_unresolvable.look
def pod_names_unresolvable(launch: Launch) -> Iterator[Finding]:
    """A first pod whose name does not resolve, because the pods use the host's resolver."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or pod.operator not in _BY_NAME or not pod.host_network or (pod.pods or 0) < 2:
            continue
        if pod.dns_policy not in (None, "ClusterFirst", "Default") or _has_own_address(line):
            continue
        policy = pod.dns_policy or "not set"
        yield Finding(
            f"hostNetwork with dnsPolicy {policy}: the first pod's name does not resolve in the pods",
            (Evidence("launch.pod.dns_policy", policy, "ClusterFirstWithHostNet"),),
            fix="Add `dnsPolicy: ClusterFirstWithHostNet` next to `hostNetwork: true`.",
            where=manifest_place(line, pod.host_network_at),
            label="add dnsPolicy: ClusterFirstWithHostNet",
        )


@master_addr_unresolvable.look
def pod_names_of_other_services(submission: Submission) -> Iterator[Finding]:
    """A master address such as `train-0.train` whose second part is not the subdomain of the pod, or `train-0` alone: a pod
    resolves its own name, the others need the service.
    """
    told = set()
    services = {service.name for service in submission.services}
    is_shared = len({host for host, _, _, _ in masters_of(submission)}) == 1  # else each pod names itself: ENV020
    for host, _, _, mark in masters_of(submission):
        pod, _, rest = host.partition(".")
        given, domain = rest.partition(".")[0], submission.domains.get(pod)
        is_served = given == domain if rest else pod in services
        if domain is None or is_served or not (rest or is_shared) or (mark.line, host) in told:
            continue
        told.add((mark.line, host))
        wanted = f"{pod}.{domain}" if domain else "a service in the pods' subdomain"
        text = f"{pod:.40}.{given:.40} does not resolve: the pods' service is {domain or 'not set'}"
        if not rest:
            text = f"{pod:.40} resolves in that pod only: the others need the pods' service in the name"
        label = f"use {wanted:.50}" if domain else "set the pods' service"
        yield at_mark(submission, mark, text, seen=host, expected=wanted, label=label)


@master_addr_unresolvable.look
def names_unknown_to_the_host(submission: Submission) -> Iterator[Finding]:
    """A master address that is the name of a pod or service of the manifest, in pods that use the DNS of their machine."""
    services, told = {service.name for service in submission.services}, set()
    hosts = {task.host for task in submission.tasks}
    for host, _, _, _ in masters_of(submission):
        labels = host.split(".")
        is_inside = labels[0] in services or (len(labels) > 1 and (labels[0] in hosts or labels[1] in services))
        marks = {mark for pod, mark in submission.host_resolved.items() if pod in hosts}
        for mark in sorted(marks if is_inside else (), key=lambda each: each.line):
            if mark.line in told:
                continue
            told.add(mark.line)
            meant = "dnsPolicy: ClusterFirstWithHostNet"
            text = f"{host:.40} does not resolve: pods with hostNetwork use the DNS of the machine"
            yield at_mark(submission, mark, text, seen="hostNetwork: true", expected=meant, label=f"add {meant}")


def _has_own_address(line: LaunchLine) -> bool:
    agent = line.agent
    return agent is None or any(agent.given(dest) for dest in ("master_addr", "rdzv_endpoint"))


@master_port_dropped.look
def master_port_closed(launch: Launch) -> Iterator[Finding]:
    """The network policies do not let the job's pods connect to the master port."""
    for line, pod, port in closing_policies(launch):
        if is_shut(pod, port):
            closed = "all ports" if port is None else f"master port {port}"
            text = f"the network policy blocks {closed} between the job's pods (it opens {open_ports_text(pod)})"
            yield replace(policy_finding(line, pod, text), label="allow all TCP between the pods")


@store_unreachable.look
def store_unreachable_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.STORE_UNREACHABLE)


@master_addr_swallows_packets.look
def master_addr_swallows_packets_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_ADDR_SWALLOWS_PACKETS)


@master_addr_without_host.look
def master_addr_without_host_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_ADDR_WITHOUT_HOST)


@master_port_dropped.look
def master_port_dropped_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_PORT_DROPPED)


@master_port_rejected.look
def master_port_rejected_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_PORT_REJECTED)
