"""NET002, NET004 to NET008: the way from this node to the master, up to the point where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.addresses import is_ip, malformation
from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.reachability import Attempt, ConnectOutcome
from ddpdoctor.findings import Evidence, Finding, Role, Severity, Where
from ddpdoctor.rules import rule
from ddpdoctor.rules.net import ways
from ddpdoctor.rules.node_findings import only_met
from ddpdoctor.rules.observation_findings import is_second_store, observed, only_probed

__all__ = ["no_host", "no_route", "port_dropped", "port_rejected", "swallows", "unreachable", "unresolvable"]


@rule(
    "NET002",
    "master-addr-unresolvable",
    Severity.ERROR,
    signatures=(
        r"gai error: -\d+",
        r"host not found: Name or service not known",
        r"nodename nor servname",
        r"Temporary failure in name resolution",
    ),
)
def unresolvable(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """This node cannot turn MASTER_ADDR into an address.

    ## Why it matters
    Every rank here repeats "The IPv6 network addresses of (HOST, PORT) cannot be retrieved (gai error: -2 - Name or service
    not known)" for up to 30 minutes; newer releases end with a plain timeout that does not mention the name.

    ## Fix
    Put the IP address of rank 0's node into MASTER_ADDR, or make the name known here through DNS or /etc/hosts.
    """
    is_malformed = (
        environ is not None and malformation(environ.master_addr or "") is not None
    )  # ENV016 tells what it is
    for finding in observed(probe.seen(Kind.UNRESOLVABLE) if probe else ()):
        yield replace(finding, role=Role.CONSEQUENCE, caused_by="ENV016") if is_malformed else finding
    if only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    asked = net.master_name
    if asked is None or asked.addresses or is_malformed:
        return
    if asked.name == net.hostname:
        return  # NET014: this machine does not know its own name
    yield Finding(
        f"MASTER_ADDR={shorten(asked.name)} cannot be resolved on this node ({asked.error or 'no address'}, "
        f"after {asked.seconds:.1f} s); a name that every node knows, or an IP address, was expected",
        evidence=(Evidence("net.master_name.error", asked.error or "no address", "at least one address"),),
        severity=Severity.WARNING if asked.is_late else None,
    )


@rule(
    "NET003",
    "store-unreachable",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"client socket has timed out after \d+m?s while trying to connect to",
        r"\b\d+/\d+ clients joined",
        r"\bconnect\(\) timed out\.",
        r"server socket on \[[^\]]*\]:\d+ has timed out, will retry",
        r"failed to connect to \S+ \(errno: 113 - No route to host\)",
        r"failed to connect to \S+ \(errno: 11[01] - Connection (timed out|refused)\)",
        r"failed to connect to any network address of",
    ),
)
def unreachable(nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """A node cannot connect to the store of the job, and neither its name nor its port is the reason.

    ## Why it matters
    "The client socket has timed out after …ms while trying to connect to (HOST, PORT)": each side prints something else, and
    the reason is in a third place.

    ## Fix
    Check from this node that HOST:PORT is an address of rank 0's node, that rank 0 runs there, and that the port is open.
    """
    if nodes is None and probe is None:
        not_here("neither other nodes nor a probe were looked at")
    if nodes is not None:
        yield from ways.other_ways(nodes)
    if probe is not None:
        yield from observed(probe.seen(Kind.UNREACHABLE), expected="the job's store")


@rule("NET004", "master-addr-swallows-packets", Severity.ERROR)
def swallows(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """Nothing at all comes back from the master's address.

    ## Why it matters
    The first line, "The server socket on [ADDR]:PORT has timed out, will retry.", comes after more than two minutes. The
    address is stale or wrong, or everything to it is filtered on the way.

    ## Fix
    Set MASTER_ADDR to an address of rank 0's node on a network that all nodes of the job share.
    """
    yield from observed(probe.seen(Kind.SILENT) if probe and not is_second_store(probe) else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ANSWER)
    if attempt is not None and not attempt.pings:
        yield _finding(
            net, attempt, f"{attempt.address} answers nothing: no connection within {attempt.seconds:.1f} s, no ping"
        )


@rule("NET005", "master-addr-without-host", Severity.ERROR)
def no_host(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """Nobody on the local network has the master's address.

    ## Why it matters
    torch says "errno: 113 - No route to host" within seconds and goes on trying for 30 minutes. The subnet is right, and
    no machine in it answers to the address: it is switched off, or the address is mistyped or stale.

    ## Fix
    Correct MASTER_ADDR, and check that the node with rank 0 is up.
    """
    yield from observed(probe.seen(Kind.MASTER_WITHOUT_HOST) if probe else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_HOST)
    if attempt is not None:
        yield _finding(net, attempt, f"no machine on the local network has the address {attempt.address}")


@rule(
    "NET006",
    "no-route-to-master",
    Severity.ERROR,
    signatures=(
        r"errno: 101 - Network is unreachable",
        r"failed to connect to \S+ \(errno: 22 - Invalid argument\)",
    ),
)
def no_route(net: Net | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """No route leads from this node to the master's address.

    ## Why it matters
    torch says "errno: 101 - Network is unreachable", or "errno: 22 - Invalid argument" where a blackhole route was set,
    and tries again until the timeout.

    ## Fix
    Add the route, or set MASTER_ADDR to an address in a network that this node reaches.
    """
    yield from observed(probe.seen(Kind.NO_ROUTE) if probe else ())
    if only_probed(probe, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ROUTE)
    if attempt is not None:
        finding = _finding(net, attempt, f"this node has no route to {attempt.address} (errno {attempt.errno})")
        is_offline = all(name.startswith("lo") for name in net.running)
        yield replace(finding, role=Role.CONSEQUENCE, caused_by="NET022") if is_offline else finding


@rule("NET007", "master-port-dropped", Severity.ERROR)
def port_dropped(net: Net | None = None, nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """The master answers a ping, and packets to its port are dropped.

    ## Why it matters
    Names resolve and ping works, so the network looks healthy; the first line of torch comes after two minutes.

    ## Fix
    Open the master port between the nodes of the job in the firewall or the security group.
    """
    if nodes is not None:
        yield from ways.dropped(nodes)
    if probe is not None and not is_second_store(probe):
        yield from observed(probe.seen(Kind.PORT_DROPPED), expected="an open port")
    if (net is None and probe is not None) or only_met(nodes, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.NO_ANSWER)
    if attempt is not None and attempt.pings:
        yield _finding(
            net, attempt, f"{attempt.address} answers a ping, but nothing comes back from its port: a firewall drops it"
        )


@rule("NET008", "master-port-rejected", Severity.ERROR)
def port_rejected(net: Net | None = None, nodes: Nodes | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """A firewall forbids connections to the master's port.

    ## Why it matters
    torch prints "errno: 113 - No route to host" although the route is fine, and tries again until the timeout.

    ## Fix
    Open the master port between the nodes of the job in the firewall.
    """
    if nodes is not None:
        yield from ways.rejected(nodes)
    if probe is not None and not is_second_store(probe):
        yield from observed(probe.seen(Kind.PORT_REJECTED), expected="an open port")
    if (net is None and probe is not None) or only_met(nodes, net):
        return
    assert net is not None
    attempt = _ended(net, ConnectOutcome.PROHIBITED)
    if attempt is not None:
        yield _finding(
            net, attempt, f"connections to {attempt.address} are forbidden on the way (errno {attempt.errno})"
        )


def _ended(net: Net, outcome: ConnectOutcome) -> Attempt | None:
    """The best attempt, where it ended so; None when there was nothing to reach. A skip when no attempt came back."""
    if net.is_master is not False:
        return None  # this node is the master, or NET002 says why it is not known
    if net.port is None:
        return None  # without a port number there was nothing to knock at: ENV015
    best = net.best_attempt
    if best is None:
        unanswered("the connection to the master did not come back in time")
    return best if best.outcome is outcome else None


def _finding(net: Net, attempt: Attempt, said: str) -> Finding:
    return Finding(
        f"the master cannot be reached: {said}; an open port, or a refusal before the job starts, was expected",
        evidence=(Evidence("net.attempts[0].outcome", attempt.outcome.value, "store or refused"),),
        where=Where(peer=_peer(net, attempt)),
    )


def _peer(net: Net, attempt: Attempt) -> str:
    """The short name of the machine that could not be reached; its address where nobody told a name."""
    name = net.master_name.name if net.master_name is not None else attempt.address
    return attempt.address if is_ip(name) else name.partition(".")[0]
