"""`net`: interfaces, names, the master's address and its port. Takes at most 4.5 s, even if nothing responds."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import replace

from ddpdoctor.collectors.interfaces import read_interfaces
from ddpdoctor.collectors.ports import find_free_port, listening_ports, look_at
from ddpdoctor.collectors.rdma import look as look_at_rdma
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.net import DEFAULT_PORT, Interface, Net, Port, is_loopback
from ddpdoctor.facts.reachability import Attempt, Lookup
from ddpdoctor.network.connect import source_address
from ddpdoctor.network.resolve import late, look_up, look_up_fqdn, look_up_reverse
from ddpdoctor.network.tcp_reach import check_reachability
from ddpdoctor.system.machine import Machine, Root
from ddpdoctor.system.timeouts import finish_all

__all__ = ["collect", "look_at_master"]

NAME_SECONDS = 2.0
"""How long a lookup may take; the resolver's own limit is 5 s per attempt."""
REACH_SECONDS = 2.0
ALL_SECONDS = 4.5
REVERSE_MAX = 4


class NetworkAnswers:
    """The results of the threads so far: one that times out leaves its field unchanged."""

    def __init__(self) -> None:
        self.own: Lookup | None = None
        self.full: Lookup | None = None
        self.master: Lookup | None = None
        self.route: str | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.reverse: dict[str, Lookup] = {}


def collect(machine: Machine) -> Net:
    """The net section; fields that could not be collected are None, with a gap."""
    gaps: list[Gap] = []
    interfaces = read_interfaces(machine.root, gaps)
    number, is_set = _port_number(machine)
    hostname = socket.gethostname() if machine.root.is_real else machine.root.line("/proc/sys/kernel/hostname") or ""
    answers = _ask_all(machine, interfaces, hostname, number) if machine.root.is_real else NetworkAnswers()
    low_high = (machine.root.line("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return Net(
        hostname=hostname,
        interfaces=interfaces,
        own_name=answers.own,
        full_name=answers.full,
        master_name=answers.master,
        reverse=tuple(answers.reverse.values()),
        route_to_master=answers.route,
        attempts=answers.attempts,
        port=_port(machine, number, is_set, gaps),
        free_port=_free_port(machine, number, gaps),
        ephemeral_ports=tuple(int(n) for n in low_high) if all(n.isdigit() for n in low_high) and low_high else None,
        reserved_ports=machine.root.line("/proc/sys/net/ipv4/ip_local_reserved_ports"),
        unprivileged_from=machine.root.number("/proc/sys/net/ipv4/ip_unprivileged_port_start"),
        listening=listening_ports(machine.root),
        backlog_max=machine.root.number("/proc/sys/net/core/somaxconn"),
        rdma=look_at_rdma(machine),
        gaps=(*gaps, *_settings_gaps(machine)),
    )


def _port_number(machine: Machine) -> tuple[int | None, bool]:
    """The port of the job's store, and whether MASTER_PORT names it; None when MASTER_PORT is not a port number."""
    given = _variable(machine, "MASTER_PORT")
    if not given:
        return DEFAULT_PORT, False
    usable = given.isascii() and given.isdigit() and len(given) < 7 and 0 < int(given) < 65536
    return (int(given) if usable else None), True


def _variable(machine: Machine, name: str) -> str:
    """The variable, else torchrun's default for its option, "" without either."""
    return (machine.environ.get(name) or machine.environ.get(f"PET_{name}") or "").strip()


def _port(machine: Machine, number: int | None, is_set: bool, gaps: list[Gap]) -> Port | None:
    if number is None:
        gaps.append(Gap("net.port", "MASTER_PORT is not a port number", Why.NOT_HERE))
        return None
    if not machine.root.is_real:
        gaps.append(Gap("net.port", "not available in a captured file tree", Why.NOT_HERE))
        return None
    try:
        return look_at(machine, number, is_set)
    except OSError as error:
        gaps.append(Gap("net.port", f"port {number} could not be tested: {error.strerror}"))
        return None


def _free_port(machine: Machine, number: int | None, gaps: list[Gap]) -> int | None:
    if not machine.root.is_real:
        return None
    try:
        return find_free_port(number or DEFAULT_PORT)
    except OSError as error:
        gaps.append(Gap("net.free_port", f"no port could be tested: {error.strerror}"))
        return None


def _settings_gaps(machine: Machine) -> list[Gap]:
    files = {
        "net.ephemeral_ports": "/proc/sys/net/ipv4/ip_local_port_range",
        "net.reserved_ports": "/proc/sys/net/ipv4/ip_local_reserved_ports",
        "net.unprivileged_from": "/proc/sys/net/ipv4/ip_unprivileged_port_start",
        "net.backlog_max": "/proc/sys/net/core/somaxconn",
    }
    unread = {name: path for name, path in files.items() if machine.root.line(path) is None}
    return [
        Gap(name, f"{path} is not readable", Why.UNANSWERED)
        if machine.root.exists(path)
        else Gap(name, f"{path} does not exist", Why.NOT_HERE)
        for name, path in unread.items()
    ]


def _ask_all(machine: Machine, interfaces: tuple[Interface, ...], hostname: str, number: int | None) -> NetworkAnswers:
    """Query the resolver and check the master's reachability in parallel, in daemon threads that may be abandoned."""
    answers = NetworkAnswers()
    master = _variable(machine, "MASTER_ADDR")
    own = {a.ip.partition("%")[0] for i in interfaces for a in i.addresses}
    routable = [ip for ip in own if not is_loopback(ip) and not ip.startswith("fe80:")][:REVERSE_MAX]

    def ask_own() -> None:
        answers.own = look_up(hostname, NAME_SECONDS)

    def ask_full() -> None:
        answers.full = look_up_fqdn(hostname, NAME_SECONDS)

    def ask_master() -> None:
        answers.master = look_up(master, NAME_SECONDS)
        foreign = [ip for ip in answers.master.addresses if ip not in own and not is_loopback(ip)]
        if not foreign or len(foreign) < len(answers.master.addresses):
            return
        answers.route = next(filter(None, (source_address(ip) for ip in foreign)), None)
        if number is not None:
            answers.attempts = check_reachability(machine.root, foreign, number, REACH_SECONDS)

    def ask_reverse(ip: str) -> None:
        answers.reverse[ip] = look_up_reverse(ip, NAME_SECONDS)

    works: list[Callable[[], None]] = [ask_own, ask_full, *([ask_master] if master else ())]
    works += [functools.partial(ask_reverse, ip) for ip in routable]
    deadline = machine.deadline.cut(ALL_SECONDS)
    finish_all(works, lambda: deadline.left)
    if master and answers.master is None:
        answers.master = late(master, NAME_SECONDS)
    return answers


def look_at_master(net: Net, root: Root, host: str, port: int) -> Net:
    """The section with the reachability of a master that was not known when it was collected."""
    lookup = look_up(host, NAME_SECONDS)
    foreign = [ip for ip in lookup.addresses if not net.is_own(ip)]
    if not foreign or len(foreign) < len(lookup.addresses):
        return replace(net, master_name=lookup)
    route = next(filter(None, (source_address(ip) for ip in foreign)), None)
    attempts = check_reachability(root, foreign, port, REACH_SECONDS)
    return replace(net, master_name=lookup, route_to_master=route, attempts=attempts, port=Port(port, is_set=True))
