"""NET001: another program uses the master port."""

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
        r"(?:^|[^:] |[^d]: |[^e]d: |:)[Aa]ddress already in use",
        r"(?:^|[^o] )bind failed: [Aa]ddress already in use",
        r"(?:socket|bootstrap)\.cc:\d+ NCCL WARN Call to bind failed: Address already in use",
        r"Tried to launch distributed communication on port",
    ),
)
def port_in_use(
    environ: Environ | None = None, net: Net | None = None, probe: Probe | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """The port of the job's store is in use by another program.

    ## Why it matters
    Rank 0 fails with `The server socket has failed to listen on any local network address … EADDRINUSE, message: address
    already in use`, and under c10d this error is not even printed. The other ranks connect to the other program, often a rank
    of an earlier run, and wait forever, even beyond an explicit timeout.

    ## Fix
    End the process that holds the port, or use another `--master-port` on every node; on a single node leave the port out.

    ## Example
    In the log of rank 0:

        The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98,
        name: EADDRINUSE, message: address already in use

    On node 0, end the old rank:

        ddpdoctor ports
        kill 4711

    Or on every node, use another port:

        # before
        torchrun --nnodes 2 --master-addr node0 --master-port 29500 train.py
        # after
        torchrun --nnodes 2 --master-addr node0 --master-port 29501 train.py

    ## Source
    torch TCPStore binds every address with SO_REUSEADDR, so sockets in TIME_WAIT do not block it.
    Confirmed in https://github.com/thu-coai/CDial-GPT/issues/103 and
    https://github.com/facebookresearch/XLM/issues/53 (another free port for each job).
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
        yield from _on_another_node(net, environ)
        return
    if environ.master_port is None:
        return
    port = net.need(net.port, "port")
    if port.is_taken and not any(s.is_ours for s in port.sockets):
        yield _on_this_node(net, port)


def _on_this_node(net: Net, port: Port) -> Finding:
    holder = next((s for s in port.sockets if s.state == "LISTEN"), None) or next(iter(port.sockets), None)
    offer = f"use port {net.free_port}, which is free here," if net.free_port else "use another port"
    if holder is not None and holder.is_orphan and holder.pid is not None:
        fix = f"Run `kill {holder.pid}` on this node (probably a rank of a finished run), or {offer} on every node."
    else:
        fix = f"End that program on this node, or {offer} on every node."
    return Finding(
        f"port {port.number} (MASTER_PORT) is in use by {_program(holder)}",
        evidence=(
            Evidence("net.port.bind_error", port.bind_error or "", "the port can be bound"),
            *([Evidence("net.port.holder", holder.command)] if holder is not None and holder.command else []),
        ),
        fix=fix,
        fix_command=f"export MASTER_PORT={net.free_port}" if net.free_port else None,
    )


def _program(holder: PortSocket | None) -> str:
    if holder is None:
        return "a socket that /proc/net/tcp does not list"
    state = "" if holder.state == "LISTEN" else f", {holder.state} to {holder.remote or 'an unknown address'}"
    if holder.pid is None:
        of_user = f" of user {holder.user}" if holder.user else ""
        return f"a process{of_user} not visible here (another user or container{state})"
    container = f", container {holder.container}" if holder.container else ""
    command = (holder.command or "an unknown program").split(" ")[0].rpartition("/")[2]
    return f"{command} (pid {holder.pid}, user {holder.user or 'unknown'}{container}{state})"


def _on_another_node(net: Net, environ: Environ) -> Iterator[Finding]:
    best = net.best_attempt
    if best is None or best.outcome not in (ConnectOutcome.STRANGER, ConnectOutcome.SILENT):
        return
    # A store with a slow resolver looks up the name of every client first, and cannot answer meanwhile.
    is_slow = best.outcome is ConnectOutcome.SILENT and any(r.is_late or r.seconds > 0.5 for r in net.reverse)
    behaviour = (
        "something else is listening there (not a TCPStore)"
        if best.outcome is ConnectOutcome.STRANGER
        else "it accepts connections, but does not answer a TCPStore ping"
    )
    host, port = environ.master_addr or best.address, environ.master_port
    yield Finding(
        f"{host:.80} port {port} ({best.address}) is not the job's store: {behaviour}",
        evidence=(Evidence("net.attempts[0].outcome", best.outcome.value, "store, or refused before the job starts"),),
        fix="Run `ddpdoctor ports` on the master node and end the program that is listening, or use another port on every node.",
        where=Where(peer=best.address),
        severity=Severity.WARNING if is_slow else None,
    )
