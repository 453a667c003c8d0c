"""NET021, NET022, NET024: NCCL or Gloo selects an interface that the other nodes cannot reach."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.interface_choice import Choice, choose_for_gloo, choose_for_nccl, effective
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.net.net009_to_011_023_links_between_nodes import unreachable_gloo_addresses
from ddpdoctor.rules.node_findings import only_met
from ddpdoctor.rules.observation_findings import observed, only_probed

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

__all__ = ["gloo_wrong_interface", "nccl_wrong_interface", "no_socket_interface"]


@cause(
    "NET021",
    "nccl-wrong-interface",
    Severity.ERROR,
    candidates=("NET021", "NET009"),
    stage=CausalStage.REACHABILITY,
    signatures=(
        r"Bootstrap : Using (\[0\])?(docker|veth|virbr|br-|cni|flannel|cali|tun|tailscale|CloudflareWARP)",
        r"Call to connect returned Connection (timed out|refused), retrying",
        r"([Cc]onnect to \S+|Call to connect) failed : Connection refused",
        r"socketPollConnect: [Cc]onnect (to \S+ )?returned (111\()?Connection refused\)?, retrying",
        r"[Cc]onnect to ([^\n ]*fe80|169\.254\.)",
    ),
)
def nccl_wrong_interface(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL uses an interface that does not reach the other nodes.

    ## Why it matters
    The store works over one interface, but NCCL chose a bridge, a tunnel or a link-local address:
    `Bootstrap : Using docker0:172.17.0.1<0>`. Connections time out or are refused, and no message names the interface.

    ## Fix
    Set NCCL_SOCKET_IFNAME on every node to the interface of the route to MASTER_ADDR. A value such as ^docker0 replaces
    NCCL's own list of exclusions, so write `^docker,lo,virbr,…` in full.

    ## Example
    In the log (NCCL_DEBUG=INFO):

        NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>

    On every node:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_SOCKET_IFNAME=eth0
        torchrun --nnodes 2 train.py
    """
    net.need_several_nodes(environ)
    chosen = next(iter(choose_for_nccl(net, environ.settings)), None)
    if chosen is not None:
        yield from _judge(net, chosen, "NCCL", "NCCL_SOCKET_IFNAME")


@cause(
    "NET022",
    "no-socket-interface",
    Severity.ERROR,
    signatures=(r"Socket creation failed : Address family not supported",),
)
def no_socket_interface(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL finds no usable network interface.

    ## Why it matters
    NCCL fails with `Bootstrap : no socket interface found`. No interface is up and has an address of a suitable family, for
    example in a container without a network.

    ## Fix
    Start the container with `--network=host`, or set NCCL_SOCKET_FAMILY to a family that the interfaces have.

    ## Example
    In the log:

        NCCL WARN Bootstrap : no socket interface found

    The command that starts the container, on every node:

        # before
        docker run --gpus all --network=none IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all --network=host IMAGE torchrun --nproc-per-node 8 train.py
    """
    if effective(environ.settings.get("NCCL_SOCKET_IFNAME")) is not None:
        return  # ENV021 and ENV023
    if not net.interfaces:
        net.need(None, "interfaces")
    chosen = choose_for_nccl(net, environ.settings)
    only_loopback = bool(chosen) and chosen[0].interface.startswith("lo") and net.spans_nodes(environ)
    if chosen and not only_loopback:
        return
    family = environ.settings.get("NCCL_SOCKET_FAMILY")
    interfaces = ", ".join(f"{i.name} ({'up' if i.is_running else 'down'})" for i in net.interfaces)
    yield Finding(
        ("NCCL has only the loopback interface in a multi-node job" if chosen else "NCCL finds no usable interface")
        + (f" with NCCL_SOCKET_FAMILY={family:.20}" if family else "")
        + f"; interfaces: {interfaces[:200] or 'none'}",
        evidence=(Evidence("net.interfaces", interfaces[:200], "an interface that is up and has an address"),),
    )


@cause(
    "NET024",
    "gloo-wrong-interface",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(
        r"remote=\[172\.1[7-9]\.\d+\.\d+\]",
        r"gloo/transport/tcp/pair\.cc:\d+\] connect \[172\.1[7-9]\.",
    ),
)
def gloo_wrong_interface(
    environ: Environ | None = None, net: Net | None = None, nodes: Nodes | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """Gloo uses an address that the other nodes cannot reach.

    ## Why it matters
    Gloo publishes the address that the hostname resolves to, here that of a bridge or a tunnel, and fails with
    `Gloo connectFullMesh failed with …`. NCCL_SOCKET_IFNAME has no effect on Gloo.

    ## Fix
    Set GLOO_SOCKET_IFNAME on every node to the interface that reaches the other nodes.

    ## Example
    In the log:

        RuntimeError: Gloo connectFullMesh failed with [...] remote=[172.17.0.1]:43251

    On every node:

        # before
        torchrun --nnodes 2 train.py
        # after
        export GLOO_SOCKET_IFNAME=eth0
        torchrun --nnodes 2 train.py
    """
    if nodes is not None:
        yield from unreachable_gloo_addresses(nodes)
    if only_met(nodes, net, probe):
        return
    observations = probe.seen(Kind.GLOO_UNREACHABLE) if probe else ()
    yield from observed(observations, expected="an address that the other nodes can reach")
    if observations or only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    net.need_several_nodes(environ)
    net.need(net.own_name, "own_name")
    for chosen in choose_for_gloo(net, environ.variables):
        yield from _judge(net, chosen, "Gloo", "GLOO_SOCKET_IFNAME")


def _judge(net: Net, chosen: Choice, library: str, variable: str) -> Iterator[Finding]:
    """A finding if the chosen interface is local to this machine and another interface reaches the other nodes."""
    interface = net.interface(chosen.interface)
    better = next((name for name in net.way_out if name != chosen.interface), None)
    if interface is None or interface.name in net.way_out or better is None:
        return
    is_link_local = ipaddress.ip_address(chosen.ip.partition("%")[0]).is_link_local
    if not (interface.is_virtual or is_link_local):
        return
    description = (
        f"a link-local address on {interface.name}"
        if is_link_local
        else f"{interface.name}, a {interface.kind} interface"
    )
    yield Finding(
        f"{library} uses {description} ({chosen.ip}; {chosen.reason}); the other nodes are reachable over {better}",
        evidence=(Evidence("net.interfaces", f"{interface.name} {chosen.ip}", f"{better}"),),
        fix=f"Set {variable} on every node to its interface that reaches the other nodes.",
        fix_command=f"export {variable}={better}",
    )


REFUSED = (
    r"Call to connect returned Connection (timed out|refused), retrying",
    r"returned [\w() ]+, retrying \(\d+/\d+\)",
    r"([Cc]onnect to \S+|Call to connect) failed : Connection refused",
)


TRIES = re.compile(r"retrying \((?P<tried>\d+)/(?P<most>\d+)\)")


RANK_OR_NETWORK = (
    "Either the rank at that address ended first or never started (read its output first), {file}"
    "the address belongs to an interface that the other nodes cannot reach (NET021; NCCL_SOCKET_IFNAME), or the ports that "
    "NCCL chooses are closed between the nodes (NET009)"
)


OLD_INIT_FILE = "the init file has the addresses of an earlier run (NET018: use a new file), "


@nccl_wrong_interface.look
def refused(log: Log) -> Iterator[Finding]:
    """NCCL could not connect: only an interface's name or a link-local address proves that the interface is wrong."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.mentioned_peers import peer_in
    from ddpdoctor.rules.log.signatures import finding_of, signed
    from ddpdoctor.rules.net.net018_rendezvous_store_stale import rendezvous_store_stale

    lines = matching_lines(log, REFUSED)
    counted = [line for line in lines if TRIES.search(line.text)]
    is_given_up = history_of(log).has_failed or len(counted) < len(lines)
    if counted and not is_given_up and not any(_is_last(log, line) for line in counted):
        return  # it connected in the end
    for finding in signed(nccl_wrong_interface, log):
        if not lines or any(quoted.seen not in {line.text for line in lines} for quoted in finding.evidence):
            yield finding
            continue
        stale = OLD_INIT_FILE if any(context_lines(log, "init_file")) else ""
        peer = peer_in(line for line in log.lines if "onnect to " in line.text) or "a peer"
        title = f"NCCL could not connect to {peer}"
        unsure = finding_of(log, lines, title, RANK_OR_NETWORK.format(file=stale), blames_speaker=True)
        yield replace(
            unsure if is_given_up else replace(unsure, severity=Severity.WARNING, role=None),
            candidates=(*((rendezvous_store_stale.rule.code,) if stale else ()), *nccl_wrong_interface.rule.candidates),
            fix="Read the output of the rank at that address first. If it is running, compare the address with that node's "
            "interfaces (`ip -br addr`) and set NCCL_SOCKET_IFNAME on every node to the one that reaches the other nodes.",
        )


def _is_last(log: Log, line: LogLine) -> bool:
    """Whether nothing that looks like a running job follows in this source."""
    from ddpdoctor.logs.distances import FEW_PROGRESS_LINES
    from ddpdoctor.logs.history import history_of

    return not history_of(log).progress_after(line) and log.sources[line.source].lines <= (
        max(line.number, line.last) + FEW_PROGRESS_LINES
    )
