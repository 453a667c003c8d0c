"""`net`: interfaces, host names, the master's address and port, as this node sees them."""

from __future__ import annotations

import ipaddress

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Section, not_here
from ddpdoctor.facts.rdma import Rdma
from ddpdoctor.facts.reachability import FARTHEST_FIRST, Attempt, Lookup
from ddpdoctor.light_dataclass import dataclass

__all__ = ["DEFAULT_PORT", "Address", "Interface", "Net", "Port", "PortSocket", "is_loopback"]

DEFAULT_PORT = 29500
"""The port of torchrun's static rendezvous over several nodes, without `--master-port`."""

VIRTUAL = ("docker", "bridge", "veth", "tunnel", "virtual")


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface; `family` is `ipv4` or `ipv6`."""

    ip: str
    prefix_length: int
    family: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface, in the kernel's order.

    `kind` is one of loopback physical virtual bond bridge vlan veth docker tunnel infiniband wireless. `is_running` is
    IFF_RUNNING: up and with carrier. `has_default_route`: a default route uses it.
    """

    name: str
    is_up: bool = True
    is_running: bool = True
    kind: str = "physical"
    mtu: int | None = None
    speed_mbit_per_s: int | None = None
    addresses: tuple[Address, ...] = ()
    has_default_route: bool = False

    @property
    def is_virtual(self) -> bool:
        """Created by software on this machine (bridge, container, tunnel), not a path to other nodes by itself."""
        return self.kind in VIRTUAL


@dataclass(frozen=True, slots=True)
class PortSocket:
    """One socket on the port. `state` is LISTEN, ESTABLISHED, TIME_WAIT, …; owner fields are None where only root may see them.

    `is_ours`: the process is the launcher that started this process, or rank 0 of the same job.
    """

    state: str
    local: str
    remote: str = ""
    pid: int | None = None
    command: str | None = None
    user: str | None = None
    container: str | None = None
    is_ours: bool = False
    is_orphan: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """The port that the job's store would listen on. `bind_error` is None when a socket could be bound as torch binds it.

    `is_set`: from `MASTER_PORT`; else it is torchrun's default.
    """

    number: int
    is_set: bool = False
    bind_error: str | None = None
    is_taken: bool | None = None
    sockets: tuple[PortSocket, ...] = ()


@dataclass(frozen=True, slots=True)
class Net(Section):
    """The network as this node sees it. Seconds are wall time; MTU in bytes.

    `own_name` is the lookup of the hostname, `full_name` that of `socket.getfqdn()`, `master_name` that of MASTER_ADDR
    (None without one), `reverse` the reverse lookups of the own addresses. `route_to_master` is the own address from
    which packets to MASTER_ADDR leave.
    """

    hostname: str = ""
    interfaces: tuple[Interface, ...] = ()
    own_name: Lookup | None = None
    full_name: Lookup | None = None
    master_name: Lookup | None = None
    reverse: tuple[Lookup, ...] = ()
    route_to_master: str | None = None
    attempts: tuple[Attempt, ...] = ()
    port: Port | None = None
    free_port: int | None = None
    ephemeral_ports: tuple[int, ...] | None = None
    reserved_ports: str | None = None
    unprivileged_from: int | None = None
    listening: tuple[int, ...] = ()
    backlog_max: int | None = None
    rdma: Rdma | None = None
    fabric_errors: tuple[str, ...] | None = None
    """The errors in the summary of ibdiagnet, from a file; None without one."""
    gaps: tuple[Gap, ...] = ()

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """Every address of every interface, in the kernel's order."""
        return tuple(a.ip for i in self.interfaces for a in i.addresses)

    def is_own(self, ip: str) -> bool:
        """Whether this node has the address, including all of 127.0.0.0/8."""
        return is_loopback(ip) or _bare(ip) in {_bare(own) for own in self.own_addresses}

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    def interface_of(self, ip: str) -> Interface | None:
        """The interface that has the address."""
        return next((i for i in self.interfaces for a in i.addresses if _bare(a.ip) == _bare(ip)), None)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the interfaces that are up, have a carrier and an address."""
        return tuple(i.name for i in self.interfaces if i.is_running and i.addresses)

    @property
    def way_out(self) -> tuple[str, ...]:
        """Names of the interfaces towards the other nodes: the route to a remote master, else the default routes."""
        if self.route_to_master and self.is_master is False:
            interface = self.interface_of(self.route_to_master)
            return (interface.name,) if interface else ()
        return tuple(i.name for i in self.interfaces if i.has_default_route)

    @property
    def is_master(self) -> bool | None:
        """Whether `MASTER_ADDR` is this node; None when it does not resolve, True when it is not set."""
        if self.master_name is None:
            return True
        if not self.master_name.addresses:
            return None
        return any(self.is_own(ip) for ip in self.master_name.addresses)

    @property
    def best_attempt(self) -> Attempt | None:
        """The attempt that got farthest: a rank would reach the master the same way. None without attempts."""
        return min(self.attempts, key=lambda a: FARTHEST_FIRST.index(a.outcome), default=None)

    def spans_nodes(self, environ: Environ) -> bool:
        """Whether the job is known to have more than one node: from the environment, or the master is another machine."""
        return self.is_master is False or environ.is_multi_node is True

    def need_several_nodes(self, environ: Environ) -> None:
        """Skip the rule unless the job is known to have more than one node.

        Raises:
            CannotLook: according to the environment, the job has one node.
        """
        if not self.spans_nodes(environ):
            not_here("single node")


def is_loopback(ip: str) -> bool:
    """127.0.0.0/8, ::1 or the same written as IPv4 in IPv6; 0.0.0.0 and :: too, since connecting there stays on this machine."""
    try:
        address = ipaddress.ip_address(_bare(ip))
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _bare(ip: str) -> str:
    return ip.partition("%")[0].removeprefix("::ffff:")
