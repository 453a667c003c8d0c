"""NET013, NET014, NET016, NET017, NET046: what this node's own name leads to, since Gloo and c10d publish it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.net import Net, is_loopback
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.reachability import Lookup
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.net import net025_026_names_of_nodes
from ddpdoctor.rules.observation_findings import observed, only_probed

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = [
    "hostname_numeric",
    "hostname_resolves_to_loopback",
    "local_addr_unresolvable",
    "own_hostname_resolves_elsewhere",
    "own_hostname_unresolvable",
]


@cause(
    "NET013",
    "local-addr-unresolvable",
    Severity.ERROR,
    signatures=(r"trying to connect to \([^)]*(\.localdomain|\.arpa|\.local), \d+\)",),
)
def local_addr_unresolvable(
    environ: Environ | None = None, net: Net | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """The full name of this node, which c10d tells the other nodes, leads nowhere.

    ## Why it matters
    The rendezvous succeeds, and then the workers time out "while trying to connect to (NAME, PORT)" with a name that
    nobody typed: c10d publishes `socket.getfqdn()` of the node that gets group rank 0.

    ## Fix
    Start torchrun with --local-addr=<this node's routable address> on each node, or repair reverse DNS.
    """
    if nodes is not None:
        yield from net025_026_names_of_nodes.unknown_to_others(nodes)
        return
    if environ is None or net is None:
        not_here("environment and network were not looked at")
    own, full = _own(net), net.full_name
    net.need_several_nodes(environ)
    if full is None or not own.addresses or is_loopback(own.addresses[0]) or _is_number(net.hostname):
        return  # NET014, NET016 and NET017 are nearer to the cause
    if full.is_late:
        unanswered("the full hostname was not resolved in time")
    useless = full.name.partition(".")[0] == "localhost" or full.name.endswith(".arpa")
    if full.addresses and not useless:
        return
    yield Finding(
        f"c10d would publish {full.name[:80]} for this node, and that name "
        + ("means every machine itself" if useless else f"cannot be resolved ({full.error or 'no address'})"),
        evidence=(Evidence("net.full_name.name", full.name[:80], "a name that the other nodes can resolve"),),
        severity=None if environ.get("PET_RDZV_BACKEND") == "c10d" else Severity.WARNING,
    )


@cause(
    "NET014",
    "own-hostname-unresolvable",
    Severity.ERROR,
    explains=("NET012",),
    signatures=(r"Unable to resolve hostname to a \(local\) address",),
)
def own_hostname_unresolvable(environ: Environ, net: Net, versions: Versions | None = None) -> Iterator[Finding]:
    """This machine cannot resolve its own hostname.

    ## Why it matters
    Since torch 2.12 even a torchrun on one node publishes the hostname and then repeats "The IPv6 network addresses of
    (NAME, PORT) cannot be retrieved (gai error: …)" until it gives up after ten minutes. Gloo warns "Unable to resolve
    hostname to a (local) address" and takes the loopback, which no other node can reach.

    ## Fix
    Add the hostname to /etc/hosts; on one node torchrun --local-addr=127.0.0.1 does as well.
    """
    own = _own(net)
    if own.is_late:
        unanswered("the own hostname was not resolved in time")
    if own.addresses:
        return
    works = not net.spans_nodes(environ) and (_is_old(versions) or _has_other_address(environ, net))
    yield Finding(
        f"this machine cannot resolve its own hostname {net.hostname[:80]} ({own.error or 'no address'})",
        evidence=(Evidence("net.own_name.error", own.error or "no address", "an address of this machine"),),
        severity=Severity.WARNING if works else None,
    )


@cause(
    "NET016",
    "hostname-numeric",
    Severity.ERROR,
    signatures=(r"any network address of \(\d+, \d+\)", r"\[::ffff:0\.\d+\.\d+\.\d+\]"),
)
def hostname_numeric(net: Net) -> Iterator[Finding]:
    """The hostname is a number, and the resolver takes it for an IPv4 address.

    ## Why it matters
    getaddrinfo reads a name of digits as one 32-bit address before it asks anybody, so even one node tries to connect to
    an address such as [::ffff:0.0.48.57].

    ## Fix
    Give the machine a hostname with a letter in it, or start torchrun with --local-addr=<IP address>.
    """
    if _is_number(net.hostname):
        value = int(net.hostname)
        address = ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))
        yield Finding(
            f"the hostname {net.hostname} consists of digits and is read as the address {address}",
            evidence=(Evidence("net.hostname", net.hostname, "a name with a letter in it"),),
        )


@cause(
    "NET017",
    "hostname-resolves-to-loopback",
    Severity.ERROR,
    candidates=("NET017",),
    scope=CauseScope.SEPARATE_MACHINES,
    explains=("NET012",),
    signatures=(r"remote=\[127\.0\.1\.1\]", r"connect \[127\.0\.[01]\.1\]"),
)
def hostname_resolves_to_loopback(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """This node's own hostname leads to its loopback in a job of several nodes.

    ## Why it matters
    Gloo publishes that address, and the other ranks connect to themselves: "timed out connecting: SO_ERROR: Connection
    refused, remote=[127.0.1.1]". Debian and Ubuntu write this line into /etc/hosts. With one such node a job may work by
    luck, depending on which address is greater. On a single machine the line is harmless.

    ## Fix
    Map the hostname to the node's routable address in /etc/hosts, or set GLOO_SOCKET_IFNAME to its interface.
    """
    seen = [each for each in probe.seen(Kind.GLOO_LOOPBACK) if "=" not in (each.value or "")] if probe else []
    yield from observed(seen, expected="an address that the other nodes reach")
    if seen or only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    own = _own(net)
    net.need_several_nodes(environ)
    if environ.get("GLOO_SOCKET_IFNAME") or not own.addresses:
        return
    taken = next((ip for ip in own.addresses if net.is_own(ip)), None)
    if taken is None or not is_loopback(taken):
        return
    routable = next((i.name for i in net.interfaces if i.name in net.way_out and i.addresses), None)
    yield Finding(
        f"the hostname {net.hostname[:80]} resolves to {taken}, which every other node takes for itself",
        evidence=(Evidence("net.own_name.addresses[0]", taken, "an address that the other nodes reach"),),
        fix_command=f"export GLOO_SOCKET_IFNAME={routable}" if routable else None,
    )


@cause("NET046", "own-hostname-resolves-elsewhere", Severity.ERROR, explains=("NET004", "NET005", "NET006", "ENV020"))
def own_hostname_resolves_elsewhere(environ: Environ, net: Net, versions: Versions | None = None) -> Iterator[Finding]:
    """This node's own hostname leads to an address that the node does not have.

    ## Why it matters
    c10d publishes the name, so the ranks connect to another machine, or to nobody, and wait until the timeout. No message
    names the stale entry.

    ## Fix
    Correct the entry of this host in /etc/hosts or DNS; until then set GLOO_SOCKET_IFNAME and --local-addr.
    """
    own = _own(net)
    if not own.addresses or _is_number(net.hostname) or any(net.is_own(ip) for ip in own.addresses):
        return
    if not net.own_addresses:
        unanswered("the addresses of this node are not known")
    works = not net.spans_nodes(environ) and (_is_old(versions) or _has_other_address(environ, net))
    yield Finding(
        f"the hostname {net.hostname[:80]} resolves to {own.addresses[0]}, which is no address of this node "
        f"({', '.join(ip for ip in net.own_addresses if not is_loopback(ip))[:120] or 'it has none'})",
        evidence=(Evidence("net.own_name.addresses[0]", own.addresses[0], "an address of this node"),),
        severity=Severity.WARNING if works else None,
    )


def _own(net: Net) -> Lookup:
    return net.need(net.own_name, "own_name")


def _is_number(hostname: str) -> bool:
    return hostname.isascii() and hostname.isdigit() and len(hostname) < 11 and int(hostname) < 1 << 32


def _is_old(versions: Versions | None) -> bool:
    """torch before 2.12: torchrun on one node uses 127.0.0.1 and not the hostname."""
    words = (versions.torch or "").split(".") if versions else []
    return len(words) > 1 and words[0].isdigit() and words[1].isdigit() and (int(words[0]), int(words[1])) < (2, 12)


def _has_other_address(environ: Environ, net: Net) -> bool:
    """The launch has its MASTER_ADDR already, and it is not the own name."""
    given = environ.get("RANK") is not None and net.master_name is not None
    return bool(given and net.master_name and net.master_name.addresses and net.master_name.name != net.hostname)


NOBODY_AT_LOOPBACK = "Gloo found nobody at its own machine's loopback address"


UNSURE_LOOPBACK = (
    "Undetermined: the rank there ended first, where all ranks run on "
    "one machine, or in a job of several nodes a node's own name leads to its loopback (NET017)"
)


@hostname_resolves_to_loopback.look
def loopback(log: Log) -> Iterator[Finding]:
    """A loopback address that refuses: without a sign of other nodes, a rank of this machine may have ended."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    hosts = {each.who.host for each in (*log.spoken, *log.tails)} - {None}
    node_ranks = {each.who.node_rank for each in (*log.spoken, *log.tails)} - {None}
    is_sure = max(len(hosts), len(node_ranks), len(log.sources)) > 1
    for found in signed(hostname_resolves_to_loopback, log):
        yield found if is_sure else retitled(found, NOBODY_AT_LOOPBACK, UNSURE_LOOPBACK)
