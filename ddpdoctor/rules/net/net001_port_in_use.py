"""NET001: the master port belongs to somebody else."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.net import Net, Port, PortSocket
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.net import reachability_findings
from ddpdoctor.rules.observation_findings import observed, only_probed

__all__ = ["port_in_use"]


@cause(
    "NET001",
    "port-in-use",
    Severity.ERROR,
    signatures=(
        r"\bEADDRINUSE\b",
        r"[Aa]ddress already in use",
        r"Tried to launch distributed communication on port",
    ),
)
def port_in_use(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """The port of the job's store is held by a program that is no part of the job.

    ## Why it matters
    Rank 0 ends with "The server socket has failed to listen on any local network address … EADDRINUSE, message: address
    already in use". The other ranks know nothing of it: they connect to the stranger and wait for an answer that never
    comes, even past an explicit timeout. Under c10d the error is swallowed altogether. The holder is often a rank of the
    last run that nobody ended.

    ## Fix
    End the process that holds the port, or give the job another --master-port on every node; on one node leave the port out.

    ## Source
    torch TCPStore binds every address with SO_REUSEADDR, so sockets in TIME_WAIT are no obstacle.
    """
    yield from observed(probe.seen(Kind.PORT_TAKEN, Kind.STRANGER) if probe else (), expected="the job's own store")
    if nodes is not None:
        yield from reachability_findings.answered_by_another(nodes)
        return
    if only_probed(probe, environ, net):
        return
    assert environ is not None
    assert net is not None
    if net.is_master is False:
        yield from _from_afar(net, environ)
        return
    if environ.master_port is None:
        return
    port = net.need(net.port, "port")
    if port.is_taken and not any(s.is_ours for s in port.sockets):
        yield _here(net, port)


def _here(net: Net, port: Port) -> Finding:
    holder = next((s for s in port.sockets if s.state == "LISTEN"), None) or next(iter(port.sockets), None)
    offer = f"use port {net.free_port}, which is free here" if net.free_port else "use another port"
    if holder is not None and holder.is_orphan and holder.pid is not None:
        fix = f"It looks like a rank that a finished run left behind: kill {holder.pid}; or {offer}, on every node."
    else:
        fix = f"End the program that holds it, or {offer}, on every node."
    return Finding(
        f"port {port.number} (MASTER_PORT) is taken {_by(holder)}; the store of the job cannot listen there",
        evidence=(Evidence("net.port.bind_error", port.bind_error or "", "the port can be bound"),),
        fix=fix,
        fix_command=f"export MASTER_PORT={net.free_port}" if net.free_port else None,
    )


def _by(holder: PortSocket | None) -> str:
    if holder is None:
        return "by a socket that /proc/net/tcp does not show"
    state = "listening" if holder.state == "LISTEN" else f"{holder.state}, towards {holder.remote or 'nobody'}"
    if holder.pid is None:
        of_user = f" of user {holder.user}" if holder.user else ""
        return f"by a process{of_user} that cannot be seen from here, another user's or outside of this container ({state})"
    inside = f" in container {holder.container}" if holder.container else ""
    return f"by pid {holder.pid} ({holder.command or '?'}) of user {holder.user or '?'}{inside} ({state})"


def _from_afar(net: Net, environ: Environ) -> Iterator[Finding]:
    best = net.best_attempt
    if best is None or best.outcome not in (ConnectOutcome.STRANGER, ConnectOutcome.SILENT):
        return
    # A store whose resolver is slow looks up every client's name first, and cannot answer meanwhile.
    is_slow = best.outcome is ConnectOutcome.SILENT and any(r.is_late or r.seconds > 0.5 for r in net.reverse)
    said = (
        "answers as no TCPStore does"
        if best.outcome is ConnectOutcome.STRANGER
        else "accepts and never answers a TCPStore ping"
    )
    host, port = environ.master_addr or best.address, environ.master_port
    yield Finding(
        f"{host:.80} port {port} ({best.address}) {said}: it is not the job's store that listens there",
        evidence=(Evidence("net.attempts[0].outcome", best.outcome.value, "store, or refused before the job starts"),),
        fix="On the master node, find who listens with `ddpdoctor ports`, end it, or use another port on every node.",
        where=Where(peer=best.address),
        severity=Severity.WARNING if is_slow else None,
    )
