"""ENV025, ENV030, ENV031: settings that reach some nodes, or lead them to different networks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.programs import REMOTE
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.facts.nodes import Node, Nodes, Split, split
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.node_findings import differs

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["env_not_propagated", "nccl_env_differs", "nccl_socket_ifname_differs"]

MUST_AGREE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_FAMILY",
)
"""Settings by which NCCL chooses algorithms, buffers and networks: ranks that choose differently wait for each other."""
NAMES_OF_CARDS = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
)
"""Interfaces and adapters have other names on other machines: what is wrong with them is judged where they are, and of
collected files a difference is a note."""
PREFIX = "environ."
UNSET = "not set"


def _variables(nodes: Nodes) -> dict[str, Split]:
    """How the nodes differ in each variable that steers the job's processes.

    Raises:
        CannotLook: fewer than two nodes told their variables.
    """
    if sum(bool(node.traits) for node in nodes.nodes) < 2:
        not_here("fewer than two nodes told their variables")
    names = sorted({name for node in nodes.nodes for name in node.traits if name.startswith(PREFIX)})
    known = [node for node in nodes.nodes if node.traits]
    splits = {name: split(known, lambda node, name=name: node.traits.get(name, UNSET)) for name in names}  # type: ignore[misc]
    return {name.removeprefix(PREFIX): found for name, found in splits.items() if found is not None}


@cause(
    "ENV025",
    "nccl-socket-ifname-differs",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    explains=("NET009", "NET010"),
)
def nccl_socket_ifname_differs(nodes: Nodes) -> Iterator[Finding]:
    """NCCL would use interfaces in different subnets on different nodes.

    ## Why it matters
    Every node has a valid interface, but where no router leads from one subnet to the other no pair can connect, and the job
    hangs at its first collective.

    ## Fix
    Set NCCL_SOCKET_IFNAME on every node to the interface of one common subnet.
    """
    told = [node for node in nodes.nodes if node.nccl_addresses]
    if len(told) < 2:
        not_here("fewer than two nodes told which interface NCCL would use")
    firsts = [node for node in told if _network(node) is not None]
    found = split(firsts, lambda node: str(_network(node)))
    if found is None or _all_reach(nodes):
        return
    broken = any(not link.works for link in nodes.links)
    if broken or not nodes.links:
        yield differs(
            found,
            "the subnet of the interface that NCCL takes",
            "nccl_addresses",
            severity=None if broken else Severity.NOTE if _is_by_rack(found) else Severity.WARNING,
        )


def _is_by_rack(found: Split) -> bool:
    """Several subnets with several nodes each: as racks have that a router connects."""
    return len(found.groups) > 2 and all(len(nodes) > 1 for _, nodes in found.groups)


def _network(node: Node) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_interface(node.nccl_addresses[0]).network
    except ValueError:
        return None


def _all_reach(nodes: Nodes) -> bool:
    """The nodes reach each other at these very addresses: a router lies between the subnets."""
    return bool(nodes.links) and all(link.works for link in nodes.links)


@cause("ENV030", "env-not-propagated", Severity.ERROR, scope=CauseScope.FACTS_OF_NODES)
def env_not_propagated(nodes: Nodes) -> Iterator[Finding]:
    """Variables that steer the job are set on some nodes and not on others.

    ## Why it matters
    What was exported in the submitting shell stays there: mpirun without -x, ssh and Ray start ranks without it. Some ranks
    then run with other settings than the rest; with settings that must agree the job hangs.

    ## Fix
    Pass them on: mpirun -x NAME, srun --export=ALL, .deepspeed_env, Ray's runtime_env, or /etc/nccl.conf on every node.
    """
    for name, found in _variables(nodes).items():
        values = [value for value, _ in found.groups]
        severity = _severity(name, values)
        if UNSET not in values or len(values) != 2 or (severity is Severity.NOTE and nodes.is_meeting):
            continue
        yield differs(found, f"{name} (set on some nodes only)", f"{PREFIX}{name}", severity=severity)


def _severity(name: str, values: list[str]) -> Severity | None:
    """How bad it is that the nodes have these values; None is as bad as the rule says."""
    if name in NAMES_OF_CARDS:
        return Severity.NOTE
    return None if _must_agree(name, values) else Severity.WARNING


def _must_agree(name: str, values: list[str]) -> bool:
    """Whether ranks with these values wait for each other: with DETAIL each one checks every collective with all others first."""
    return name in MUST_AGREE or (name == "TORCH_DISTRIBUTED_DEBUG" and "DETAIL" in map(str.upper, values))


@cause(
    "ENV031",
    "nccl-env-differs",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    signatures=(r"[Mm]essage truncated : receiv(ing|ed) \d+ bytes instead of \d+",),
)
def nccl_env_differs(nodes: Nodes) -> Iterator[Finding]:
    """NCCL settings that must agree differ between ranks.

    ## Why it matters
    "Message truncated : received 1024 bytes instead of 256", or a hang: the ranks chose different algorithms, protocols or
    buffer sizes. It reads like a fault of the network. Collectives of different sizes, and NCCL 2.19.3 to 2.20.5 by a fault of
    their own, print the same line.

    ## Fix
    Compare env | grep NCCL_ and the NCCL version on all nodes, and give every rank the same NCCL_ALGO, NCCL_PROTO,
    NCCL_BUFFSIZE and NCCL_NTHREADS, best none of them; look at /etc/nccl.conf and ~/.nccl.conf too.
    """
    for name, found in _variables(nodes).items():
        values = [value for value, _ in found.groups if value != UNSET]
        severity = _severity(name, values)
        if (
            len(values) < 2
            or name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
            or (severity is Severity.NOTE and nodes.is_meeting)
        ):
            continue
        yield differs(found, name, f"{PREFIX}{name}", severity=severity)


@env_not_propagated.look
def not_exported(launch: Launch) -> Iterator[Finding]:
    """Text in single quotes for another shell names variables that this script only assigns."""
    for line in launch.lines:
        if not line.private:
            continue
        names = ", ".join(line.private)
        shell = next(layer.own[-1] for layer in line.layers if layer.is_shell_text)
        words = (word for layer in line.layers for word in (*layer.own, *layer.reading.arguments) if word.context)
        word = next((w for w in words if re.search(rf"\$\{{?{line.private[0]}\b", w.raw)), shell)
        remote = next((layer for layer in line.layers if layer.name in REMOTE), None)
        are = "are" if len(line.private) > 1 else "is"
        if remote is not None:
            text = f"{names} {are} empty in the quoted text: {remote.name} passes no variables; expected double quotes"
            yield point(
                launch, line, word, text, "double quotes", fix="Put the text in double quotes, or export inside it."
            )
            continue
        text = f"{names} {are} empty in the quoted text: this script assigns and does not export; expected export"
        start = line.argv[0].start
        edits = [SpanEdit(start, start, f"export {' '.join(line.private)}; ")]
        yield point(launch, line, word, text, "export", edits, fix="Export them where they are assigned.")


@nccl_env_differs.look
def settings_differ(log: Log) -> Iterator[Finding]:
    """The same without different versions."""
    from ddpdoctor.rules.log.log502_nccl_error_without_reason import nccl_versions
    from ddpdoctor.rules.log.signatures import signed

    if not nccl_versions(log):
        yield from signed(nccl_env_differs, log)
