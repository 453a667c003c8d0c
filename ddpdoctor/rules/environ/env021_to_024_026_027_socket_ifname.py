"""ENV021 to ENV024, ENV026, ENV027: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME against the interfaces of this node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.interface_choice import choose_for_nccl, effective, names_matching
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ.settings import about, line, taking_away
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.observation_findings import observed, only_probed

if TYPE_CHECKING:
    from ddpdoctor.facts.net import Interface, Net

__all__ = [
    "gloo_socket_ifname_invalid",
    "gloo_socket_ifname_loopback",
    "nccl_socket_ifname_down",
    "nccl_socket_ifname_loopback",
    "nccl_socket_ifname_not_found",
    "nccl_socket_ifname_prefix_match",
]

NCCL = "NCCL_SOCKET_IFNAME"
GLOO = "GLOO_SOCKET_IFNAME"


@cause(
    "ENV021",
    "nccl-socket-ifname-not-found",
    Severity.ERROR,
    also_in=("net",),
    signatures=(
        r"Bootstrap : no socket interface found",
        r"connecting to address\s+with family [1-9]\d* is neither",
        r"NET/Socket : no interface found",
        r"NET/Socket : No usable listening interface found",
        r"NET/IB : No IP interface found",
    ),
)
def nccl_socket_ifname_not_found(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches no interface of this node.

    ## Why it matters
    NCCL fails with `Bootstrap : no socket interface found`; releases before 2.22 print an error about an address
    family. The value usually fits another node, where the interface has another name.

    ## Fix
    Unset NCCL_SOCKET_IFNAME, or name an interface that every node has; a list such as eno1,eth0 is allowed.

    ## Example

        NCCL WARN Bootstrap : no socket interface found

        # before: this node has lo and eth0
        export NCCL_SOCKET_IFNAME=ens3
        # after
        unset NCCL_SOCKET_IFNAME
    """
    spec = _spec(environ, NCCL, net)
    if spec is not None and not names_matching(net, spec):
        yield _finding(environ, NCCL, spec, "matches no interface", net)


@cause("ENV022", "nccl-socket-ifname-prefix-match", Severity.WARNING, also_in=("net",))
def nccl_socket_ifname_prefix_match(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME is a prefix that also matches an interface in another subnet.

    ## Why it matters
    eth1 also matches eth10. NCCL then opens connections over both, and if only one of them reaches the other nodes,
    the job hangs at init without an error.

    ## Fix
    Write the exact form, with a second equals sign: `export NCCL_SOCKET_IFNAME==eth1`.

    ## Example

        NCCL_SOCKET_IFNAME=eth1 matches eth10 besides eth1, in another subnet

        # before
        export NCCL_SOCKET_IFNAME=eth1
        # after
        export NCCL_SOCKET_IFNAME==eth1
    """
    spec = _spec(environ, NCCL, net)
    if spec is None or spec[0] in "^=":
        return
    chosen = [c.interface for c in choose_for_nccl(net, environ.settings)]
    for name in spec.split(","):
        named = net.interface(name)
        extra = [i for i in map(net.interface, chosen) if i and i.name != name and i.name.startswith(name)]
        others = [i.name for i in extra if named and not _share_subnet(named, i) and i.name not in spec.split(",")]
        if named is not None and name in chosen and others:
            yield _finding(
                environ, NCCL, spec, f"matches {', '.join(others)[:100]} besides {name}, in another subnet", net,
                command=f"export {NCCL}={'=' + spec}",
            )  # fmt: skip


@cause("ENV023", "nccl-socket-ifname-down", Severity.ERROR, also_in=("net",))
def nccl_socket_ifname_down(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches only interfaces that are down or have no usable address.

    ## Why it matters
    NCCL skips such interfaces and fails with `Bootstrap : no socket interface found`.

    ## Fix
    Bring the interface up on that node and give it an address, or set NCCL_SOCKET_IFNAME to another one.

    ## Example

        NCCL WARN Bootstrap : no socket interface found

        # before: docker0 is down
        export NCCL_SOCKET_IFNAME=docker0
        # after
        unset NCCL_SOCKET_IFNAME
    """
    spec = _spec(environ, NCCL, net)
    matched = names_matching(net, spec) if spec is not None else ()
    if spec is None or not matched or choose_for_nccl(net, environ.settings):
        return
    family = environ.settings.get("NCCL_SOCKET_FAMILY")
    wrong = f"has no address that NCCL can use{f' (NCCL_SOCKET_FAMILY={family:.20})' if family else ''}"
    if not any(i.is_running for i in net.interfaces if i.name in matched):
        wrong = "is down"
    yield _finding(environ, NCCL, spec, f"matches {', '.join(matched)[:100]}, which {wrong}", net)


@cause("ENV024", "nccl-socket-ifname-loopback", Severity.ERROR, scope=CauseScope.SEPARATE_MACHINES, also_in=("net",))
def nccl_socket_ifname_loopback(
    environ: Environ, net: Net | None = None, launch: Launch | None = None
) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME selects the loopback interface in a job with several nodes.

    ## Why it matters
    Each node publishes a loopback address, so its peers connect to themselves, and the job hangs or ends with
    `Connection refused` at the first collective. An exclusion such as ^docker0 has the same effect: it replaces
    NCCL's own exclusion of lo.

    ## Fix
    Set NCCL_SOCKET_IFNAME to the interface of the route to MASTER_ADDR.

    ## Example

        NCCL_SOCKET_IFNAME=^docker0 makes NCCL use the loopback lo (127.0.0.1)

        # before
        export NCCL_SOCKET_IFNAME=^docker0
        # after
        export NCCL_SOCKET_IFNAME=eth0
    """
    in_lines = list(master.loopback_interface(launch, NCCL)) if launch is not None else []
    yield from in_lines
    if in_lines or (launch is not None and net is None):
        return
    if net is None:
        not_here("the interfaces were not examined")
    spec = _spec(environ, NCCL, net)
    if spec is None:
        return
    net.need_several_nodes(environ)
    chosen = next(iter(choose_for_nccl(net, environ.settings)), None)
    taken = net.interface(chosen.interface) if chosen else None
    if chosen is not None and taken is not None and taken.kind == "loopback":
        yield _finding(
            environ, NCCL, spec, f"makes NCCL use the loopback {taken.name} ({chosen.ip})", net, _way_out(NCCL, net)
        )


@cause(
    "ENV026",
    "gloo-socket-ifname-invalid",
    Severity.ERROR,
    also_in=("net",),
    signatures=(r"Unable to find address for: \S+",),
)
def gloo_socket_ifname_invalid(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME does not name an interface with an address on this node.

    ## Why it matters
    Gloo fails with `Unable to find address for: ib0`; unlike NCCL's variable, this one takes exact names, without
    prefixes, ^, or =. Jobs on GPUs fail as well, because frameworks also create a Gloo group.

    ## Fix
    Set GLOO_SOCKET_IFNAME to an interface that exists on this node, or unset it.

    ## Example

        RuntimeError: Unable to find address for: ib0

        # before: this node has lo and eth0
        export GLOO_SOCKET_IFNAME=ib0
        # after
        export GLOO_SOCKET_IFNAME=eth0
    """
    observations = probe.seen(Kind.GLOO_NO_INTERFACE) if probe else ()
    yield from observed(observations, expected="an interface with an address")
    if observations or only_probed(probe, environ):
        return
    assert environ is not None
    spec = effective(environ.get(GLOO))
    if spec is None:
        return
    if net is None:
        if spec[0] not in "^=":
            not_here("the interfaces were not examined")
        yield about(environ, GLOO, "needs exact names, without ^ and =", "an interface's name")
        return
    _spec(environ, GLOO, net)
    for name in spec.split(","):
        interface = net.interface(name)
        if interface is None or not interface.addresses:
            wrong = "matches no interface" if interface is None else f"names {name[:40]}, which has no address"
            what = "needs exact names, without ^ and =, and" if name[:1] in ("^", "=") else ""
            yield _finding(environ, GLOO, spec, f"{what} {wrong}".strip(), net, _way_out(GLOO, net))
            return


@cause("ENV027", "gloo-socket-ifname-loopback", Severity.ERROR, scope=CauseScope.SEPARATE_MACHINES, also_in=("net",))
def gloo_socket_ifname_loopback(
    environ: Environ | None = None, net: Net | None = None, launch: Launch | None = None, probe: Probe | None = None
) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME selects the loopback interface in a job with several nodes.

    ## Why it matters
    Every rank publishes 127.0.0.1: one side fails with `Connection refused, remote=[127.0.0.1]`, and the other
    waits for five times the timeout.

    ## Fix
    Set GLOO_SOCKET_IFNAME on every node to the interface that reaches the other nodes.

    ## Example

        RuntimeError: … Connection refused, remote=[127.0.0.1]:34567

        # before
        export GLOO_SOCKET_IFNAME=lo
        # after
        export GLOO_SOCKET_IFNAME=eth0
    """
    in_lines = list(master.loopback_interface(launch, GLOO)) if launch is not None else []
    of_gloo = probe.seen(Kind.GLOO_LOOPBACK) if probe else ()
    observations = [observation for observation in of_gloo if "=" in (observation.value or "")]
    yield from [*in_lines, *observed(observations, expected="the interface that reaches the other nodes")]
    if in_lines or observations or (launch is not None and net is None) or only_probed(probe, environ):
        return
    assert environ is not None
    if net is None:
        not_here("the interfaces were not examined")
    spec = _spec(environ, GLOO, net)
    if spec is None:
        return
    net.need_several_nodes(environ)
    for name in spec.split(","):
        interface = net.interface(name)
        if interface is not None and interface.kind == "loopback":
            yield _finding(environ, GLOO, spec, "makes Gloo publish a loopback address", net, _way_out(GLOO, net))


def _spec(environ: Environ, name: str, net: Net) -> str | None:
    """The variable's value if it has an effect; a skip if the interfaces of this node are unknown."""
    spec = effective(environ.settings.get(name))
    if spec is not None and not net.interfaces:
        net.need(None, "interfaces")
    return spec


def _way_out(variable: str, net: Net) -> str | None:
    return f"export {variable}={net.way_out[0]}" if net.way_out else None


def _share_subnet(one: Interface, other: Interface) -> bool:
    """Whether the first IPv4 (else IPv6) addresses of the two are in one network."""
    networks = [
        {
            ipaddress.ip_network(f"{a.ip.partition('%')[0]}/{a.prefix_length}", strict=False)
            for a in interface.addresses
            if not a.ip.startswith("fe80:")
        }
        for interface in (one, other)
    ]
    return bool(networks[0] & networks[1])


def _finding(environ: Environ, variable: str, spec: str, wrong: str, net: Net, command: str | None = None) -> Finding:
    running = ", ".join(net.running)[:200] or "none"
    path, file = environ.source(variable)
    return Finding(
        f"{line(environ, variable)} {wrong} (up here: {running})",
        evidence=(Evidence(path, spec[:80], f"one of {running}"),),
        fix_command=taking_away(environ, variable) if command is None or file is not None else command,
    )
