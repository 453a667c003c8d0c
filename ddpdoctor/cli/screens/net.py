"""`ddpdoctor net`: the interfaces, which one NCCL and Gloo would use and why, and what the names resolve to."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.cli.screens.rdma import rdma_pieces
from ddpdoctor.facts.interface_choice import Choice, choose_for_gloo, choose_for_nccl
from ddpdoctor.facts.net import Interface, Net
from ddpdoctor.facts.reachability import Lookup
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]

NARROW = 70
SHOWN = 8


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """Two tables and the interface choice of NCCL and Gloo in words, at most `width` columns wide."""
    net = facts.net
    if net is None:
        reason = next((g.reason for g in facts.gaps if g.path == "net"), "not collected")
        return draw_all([Text(f"network: {reason}")], width=width, colour=colour)
    variables = facts.environ.variables if facts.environ is not None else {}
    nccl, gloo = choose_for_nccl(net, variables), choose_for_gloo(net, variables)
    pieces: list[RenderableType] = [
        _interfaces(net, nccl, gloo, width),
        _chosen("NCCL", nccl, "finds no interface to use"),
        _chosen(
            "Gloo", gloo, "is unknown: the hostname was not resolved" if net.own_name is None else "finds no address"
        ),
        Text(""),
        _names(net, width),
        *rdma_pieces(net, variables, width),
    ]
    return draw_all(pieces, width=width, colour=colour)


def _interfaces(net: Net, nccl: tuple[Choice, ...], gloo: tuple[Choice, ...], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("interface", overflow="fold")
    table.add_column("addresses", overflow="fold")
    if width >= NARROW:
        for title in ("kind", "state", "MTU", "speed"):
            table.add_column(title, no_wrap=True, justify="right" if title in ("MTU", "speed") else "left")
    table.add_column("used by", overflow="fold")
    takers = [("NCCL", c.interface) for c in nccl[:1]] + [("Gloo", c.interface) for c in gloo]
    for interface in net.interfaces:
        shown = [f"{a.ip.partition('%')[0]}/{a.prefix_length}" for a in interface.addresses[:SHOWN]]
        middle = (interface.kind, _state(interface), _mtu(interface), _speed(interface)) if width >= NARROW else ()
        used = " ".join(dict.fromkeys(who for who, name in takers if name == interface.name))
        cells = (interface.name, "\n".join(shown) or "none", *middle, used)
        table.add_row(*(Text(cell) for cell in cells))
    if not net.interfaces:
        gap = net.gap("interfaces")
        table.add_row(Text("unknown"), Text(gap.reason if gap else "none listed"))
    return table


def _state(interface: Interface) -> str:
    if not interface.is_up:
        return "down"
    return "up" if interface.is_running else "no carrier"


def _mtu(interface: Interface) -> str:
    return "n/a" if interface.mtu is None else str(interface.mtu)


def _speed(interface: Interface) -> str:
    mbit = interface.speed_mbit_per_s
    if mbit is None:
        return "n/a"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def _chosen(library: str, choices: tuple[Choice, ...], otherwise: str) -> Text:
    if not choices:
        return Text(f"{library} {otherwise}.")
    first = choices[0]
    more = f"; also {', '.join(c.interface for c in choices[1:SHOWN])}" if len(choices) > 1 else ""
    return Text(f"{library} would use {first.interface} ({first.ip.partition('%')[0]}): {first.reason}{more}.")


def _names(net: Net, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("name", *(("what",) if width >= NARROW else ()), "resolves to", "seconds"):
        table.add_column(title, overflow="fold")
    asked = (("own hostname", net.own_name), ("full hostname", net.full_name), ("MASTER_ADDR", net.master_name))
    for what, lookup in asked:
        if lookup is not None:
            _row(table, width, _short(lookup.name), what, _answer(net, lookup), lookup)
    for lookup in net.reverse:
        _row(table, width, lookup.addresses[0], "reverse", lookup.name or lookup.error or "no name", lookup)
    if net.master_name is None:
        _row(table, width, "MASTER_ADDR", "", "not set", None)
    return table


def _row(table: Table, width: int, name: str, what: str, answer: str, lookup: Lookup | None) -> None:
    seconds = "" if lookup is None else f"{lookup.seconds:.3f}"
    cells = (name, *((what,) if width >= NARROW else ()), answer, seconds)
    table.add_row(*(Text(cell) for cell in cells))


def _answer(net: Net, lookup: Lookup) -> str:
    if not lookup.addresses:
        return lookup.error or "no address"
    own = "this node" if any(net.is_own(ip) for ip in lookup.addresses) else "another machine"
    return f"{', '.join(lookup.addresses[:SHOWN])} ({own})"


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"
