"""NET013, NET014, NET016, NET017, NET046: what this node's own name resolves to; Gloo and c10d publish it."""

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
    signatures=(r"trying to connect to \([^()]{0,255}(\.localdomain|\.arpa|\.local), \d+\)",),
)
def local_addr_unresolvable(
    environ: Environ | None = None, net: Net | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """This node's FQDN, which c10d advertises to the other nodes, does not resolve.

    ## Why it matters
    c10d publishes `socket.getfqdn()` of the node that gets group rank 0. The rendezvous succeeds, but then the workers time out
    `while trying to connect to (NAME, PORT)` with a name that is not in the launch command.

    ## Fix
    Start torchrun on each node with `--local-addr=ADDRESS`, a routable address of that node, or repair reverse DNS.

    ## Example
    In the log of a worker:

        The client socket has timed out after 600000ms while trying to connect to (node0.localdomain, 43251).

    On node 0 (use the node's own address on each node):

        # before
        torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py
        # after
        torchrun --local-addr=10.20.0.10 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py
    """
    if nodes is not None:
        yield from net025_026_names_of_nodes.unknown_to_others(nodes)
        return
    if environ is None or net is None:
        not_here("environment and network were not examined")
    own, full = _own(net), net.full_name
    net.need_several_nodes(environ)
    if full is None or not own.addresses or is_loopback(own.addresses[0]) or _is_number(net.hostname):
        return  # NET014, NET016 and NET017 name the cause more precisely
    if full.is_late:
        unanswered("the full hostname was not resolved in time")
    useless = full.name.partition(".")[0] == "localhost" or full.name.endswith(".arpa")
    if full.addresses and not useless:
        return
    yield Finding(
        f"c10d would advertise this node as {full.name[:80]}, "
        + ("which is useless on other nodes" if useless else f"which does not resolve ({full.error or 'no address'})"),
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
    Since torch 2.12 even torchrun on one node repeats `The IPv6 network addresses of (NAME, PORT) cannot be retrieved (gai
    error: …)` for ten minutes and then fails. Gloo warns `Unable to resolve hostname to a (local) address` and uses the
    loopback interface, which no other node can reach.

    ## Fix
    Add the hostname to /etc/hosts of this node; for a single-node job `torchrun --local-addr=127.0.0.1` is enough.

    ## Example
    In the log:

        The IPv6 network addresses of (cpu-vm, 43251) cannot be retrieved (gai error: -2 - Name or service not known).

    On that node, as root:

        echo "10.20.0.11 $(hostname)" >> /etc/hosts

    Or, for a job on one node:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        torchrun --local-addr=127.0.0.1 --nproc-per-node 8 train.py
    """
    own = _own(net)
    if own.is_late:
        unanswered("this machine's hostname was not resolved in time")
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
    """The hostname is a number, which is read as an IPv4 address.

    ## Why it matters
    getaddrinfo reads a name of digits as one 32-bit address before it asks any resolver. Even a single-node job then tries to
    connect to an address such as `[::ffff:0.0.48.57]`.

    ## Fix
    Give the machine a hostname that contains a letter, or start torchrun on it with `--local-addr=IP_ADDRESS`.

    ## Example
    In the log, on a machine called 12345:

        The client socket has failed to connect to any network address of (12345, 29500).

    On that node, as root:

        # before
        hostname
        12345
        # after
        hostnamectl set-hostname node-12345
    """
    if _is_number(net.hostname):
        value = int(net.hostname)
        address = ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))
        yield Finding(
            f"hostname {net.hostname} consists only of digits and is read as the address {address}",
            evidence=(Evidence("net.hostname", net.hostname, "a name with a letter"),),
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
    """This node's own hostname resolves to its loopback address in a multi-node job.

    ## Why it matters
    Gloo publishes that address, so the other ranks connect to themselves: `timed out connecting: SO_ERROR: Connection
    refused, remote=[127.0.1.1]`. Debian and Ubuntu write this line into /etc/hosts; it is harmless on a single
    machine, and with one such node a job may still work, depending on which address is greater.

    ## Fix
    Map the hostname to the node's routable address in /etc/hosts of this node, or set GLOO_SOCKET_IFNAME to its
    interface.

    ## Example
    In the log of another node:

        timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:43251

    In /etc/hosts of this node (node1):

        # before
        127.0.1.1   node1
        # after
        10.20.0.11  node1
    """
    observations = [o for o in probe.seen(Kind.GLOO_LOOPBACK) if "=" not in (o.value or "")] if probe else []
    yield from observed(observations, expected="an address that the other nodes can reach")
    if observations or only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    own = _own(net)
    net.need_several_nodes(environ)
    if environ.get("GLOO_SOCKET_IFNAME") or not own.addresses:
        return
    address = next((ip for ip in own.addresses if net.is_own(ip)), None)
    if address is None or not is_loopback(address):
        return
    routable = next((i.name for i in net.interfaces if i.name in net.way_out and i.addresses), None)
    yield Finding(
        f"hostname {net.hostname[:80]} resolves to {address}; on every other node that address is the node itself",
        evidence=(Evidence("net.own_name.addresses[0]", address, "an address that the other nodes can reach"),),
        fix_command=f"export GLOO_SOCKET_IFNAME={routable}" if routable else None,
    )


@cause("NET046", "own-hostname-resolves-elsewhere", Severity.ERROR, explains=("NET004", "NET005", "NET006", "ENV020"))
def own_hostname_resolves_elsewhere(environ: Environ, net: Net, versions: Versions | None = None) -> Iterator[Finding]:
    """This node's own hostname resolves to an address of another machine.

    ## Why it matters
    c10d publishes the name, so the ranks connect to another machine, or to an unused address, and wait until the
    timeout. No message names the stale entry.

    ## Fix
    Correct the entry of this host in /etc/hosts or DNS; until then set GLOO_SOCKET_IFNAME and `--local-addr` on this node.

    ## Example
    ddpdoctor's message:

        hostname node1 resolves to 10.99.0.5, which is not an address of this node (10.20.0.11)

    In /etc/hosts of this node:

        # before
        10.99.0.5   node1
        # after
        10.20.0.11  node1
    """
    own = _own(net)
    if not own.addresses or _is_number(net.hostname) or any(net.is_own(ip) for ip in own.addresses):
        return
    if not net.own_addresses:
        unanswered("the addresses of this node are unknown")
    works = not net.spans_nodes(environ) and (_is_old(versions) or _has_other_address(environ, net))
    yield Finding(
        f"hostname {net.hostname[:80]} resolves to {own.addresses[0]}, which is not an address of this node "
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
    parts = (versions.torch or "").split(".") if versions else []
    return len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) < (2, 12)


def _has_other_address(environ: Environ, net: Net) -> bool:
    """Whether the launch already has a MASTER_ADDR that is not this machine's own name."""
    given = environ.get("RANK") is not None and net.master_name is not None
    return bool(given and net.master_name and net.master_name.addresses and net.master_name.name != net.hostname)


REFUSED_AT_LOOPBACK = "Gloo could not connect to a loopback address"


ENDED_OR_LOOPBACK = (
    "Either, on one machine, the rank at that address ended first (read its output), or, on several nodes, a node's "
    "own name resolves to its loopback address (NET017; run `getent hosts $(hostname)` on each node)"
)


@hostname_resolves_to_loopback.look
def refused_at_loopback(log: Log) -> Iterator[Finding]:
    """A refused connection to a loopback address: without a sign of other nodes, a rank of this machine may have ended."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    hosts = {line.who.host for line in (*log.spoken, *log.tails)} - {None}
    node_ranks = {line.who.node_rank for line in (*log.spoken, *log.tails)} - {None}
    is_multi_node = max(len(hosts), len(node_ranks), len(log.sources)) > 1
    for finding in signed(hostname_resolves_to_loopback, log):
        yield finding if is_multi_node else retitled(finding, REFUSED_AT_LOOPBACK, ENDED_OR_LOOPBACK)
