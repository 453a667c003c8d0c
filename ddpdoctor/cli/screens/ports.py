"""`ddpdoctor ports`: the port of the job's store: its owner, port ranges, the connection to the master."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.net import Net, Port, PortSocket
from ddpdoctor.facts.reachability import Attempt, ConnectOutcome
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]

NARROW = 70
ENDS = {
    ConnectOutcome.STORE: "a TCPStore answers",
    ConnectOutcome.STRANGER: "something else is listening there (not a TCPStore)",
    ConnectOutcome.SILENT: "accepts connections, but does not answer a TCPStore ping",
    ConnectOutcome.REFUSED: "refused: the host is up, but no process is listening",
    ConnectOutcome.NO_ANSWER: "no answer",
    ConnectOutcome.NO_HOST: "no machine has this address",
    ConnectOutcome.PROHIBITED: "blocked between this node and the master",
    ConnectOutcome.NO_ROUTE: "no route",
    ConnectOutcome.RESET: "reset by the other end",
    ConnectOutcome.UNRESOLVED: "the name does not resolve",
    ConnectOutcome.FAILED: "failed",
}


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The port in words, its sockets as a table, the attempts at the master; at most `width` columns wide."""
    net = facts.net
    if net is None:
        reason = next((g.reason for g in facts.gaps if g.path == "net"), "not collected")
        return draw_all([Text(f"ports: {reason}")], width=width, colour=colour)
    pieces: list[RenderableType] = [*_port(net), _ranges(net)]
    if net.free_port is not None:
        pieces.append(Text(f"Free now: {net.free_port}."))
    if net.port is not None and net.port.sockets:
        pieces += [Text(""), _sockets(net.port, width)]
    pieces += [Text(""), *_master(net)]
    return draw_all(pieces, width=width, colour=colour)


def _port(net: Net) -> list[RenderableType]:
    port = net.port
    if port is None:
        gap = net.gap("port")
        return [Text(f"Port: {gap.reason if gap else 'unknown'}.")]
    if not port.is_set:
        origin = (
            "MASTER_PORT is not set. torchrun uses 29500 for several nodes, and a random free port on one node "
            "(29500 before torch 2.12)."
        )
        return [Text(origin), Text(f"Port {port.number}: {_condition(port)}.")]
    return [Text(f"Port {port.number} (MASTER_PORT): {_condition(port)}.")]


def _condition(port: Port) -> str:
    if port.is_taken:
        return "used by this job itself" if any(s.is_ours for s in port.sockets) else "taken"
    if port.bind_error is not None:
        return f"cannot be bound: {port.bind_error}"
    waiting = any(s.state == "TIME_WAIT" for s in port.sockets)
    return "free (torch can bind it in spite of sockets in TIME_WAIT)" if waiting else "free"


def _ranges(net: Net) -> Text:
    number = net.port.number if net.port else None
    words = []
    if net.ephemeral_ports is not None and len(net.ephemeral_ports) == 2:
        low, high = net.ephemeral_ports
        inside = number is not None and low <= number <= high
        words.append(
            f"ephemeral ports {low}-{high}" + (f" ({number} is inside: any connection may take it)" if inside else "")
        )
    else:
        words.append(_missing(net, "ephemeral_ports", "ephemeral ports"))
    if net.unprivileged_from is not None:
        below = number is not None and number < net.unprivileged_from
        words.append(f"privileged below {net.unprivileged_from}" + (f" ({number} needs root)" if below else ""))
    else:
        words.append(_missing(net, "unprivileged_from", "privileged ports"))
    if net.reserved_ports is not None:
        words.append(f"reserved: {net.reserved_ports[:80] or 'none'}")
    else:
        words.append(_missing(net, "reserved_ports", "reserved ports"))
    text = "; ".join(words)
    return Text(f"{text[0].upper()}{text[1:]}.")


def _missing(net: Net, field: str, what: str) -> str:
    gap = net.gap(field)
    return f"{what} unknown" + (f" ({gap.reason})" if gap else "")


def _sockets(port: Port, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    wide = width >= NARROW
    for title in ("state", "pid", "user", *(("address", "container") if wide else ()), "command"):
        table.add_column(title, overflow="fold")
    for held in port.sockets:
        middle = (held.local + (f" - {held.remote}" if held.remote else ""), held.container or "") if wide else ()
        cells = (held.state, _pid(held), held.user or "", *middle, (held.command or "")[:120])
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _pid(held: PortSocket) -> str:
    if held.pid is not None:
        return str(held.pid)
    return "none" if held.state in ("TIME_WAIT", "SYN_RECV") else "hidden (needs root)"


def _master(net: Net) -> list[RenderableType]:
    asked = net.master_name
    if asked is None:
        return [Text("MASTER_ADDR is not set.")]
    name = asked.name if len(asked.name) <= 40 else f"{asked.name[:39]}…"
    if net.is_master is None:
        return [Text(f"Master {name}: {asked.error or 'no address'} ({asked.seconds:.3f} s).")]
    if net.is_master:
        return [Text(f"Master {name}: this node ({', '.join(asked.addresses)}).")]
    route = f", reached from {net.route_to_master}" if net.route_to_master else ""
    head = Text(f"Master {name}: another machine{route}.")
    return [head, *(Text(f"  {a.address}: {_end(a)} ({a.seconds:.3f} s)") for a in net.attempts)]


def _end(attempt: Attempt) -> str:
    ping = {True: ", but answers a ping", False: ", nor to a ping", None: ""}[attempt.pings]
    number = f" (errno {attempt.errno})" if attempt.errno else ""
    return ENDS[attempt.outcome] + ping + number
