"""Which interface NCCL and Gloo use: their own handling of NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, step by step.

NCCL: `ncclFindInterfaces` (src/misc/socket.cc) and `ncclOsFindInterfaces` (src/os/linux.cc). Gloo: torch's
`ProcessGroupGloo::createDefaultDevice` and `gloo/transport/tcp/device.cc`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from ddpdoctor.facts.net import Address, Interface, Net
from ddpdoctor.light_dataclass import dataclass

__all__ = ["MAX_INTERFACES", "Choice", "choose_for_gloo", "choose_for_nccl", "effective", "matching", "names_matching"]

MAX_INTERFACES = 16
"""NCCL's MAX_IFS."""
FAMILIES = {"AF_INET": "ipv4", "AF_INET6": "ipv6"}
AUTOMATIC = (
    ("ib", "NCCL_SOCKET_IFNAME is not set: NCCL prefers names that begin with ib"),
    ("^docker,lo,virbr", "NCCL_SOCKET_IFNAME is not set: NCCL uses the first that is not docker*, lo* or virbr*"),
    ("docker", "NCCL_SOCKET_IFNAME is not set, and only docker* is up"),
    ("lo", "NCCL_SOCKET_IFNAME is not set, and only lo* is up"),
    ("virbr", "NCCL_SOCKET_IFNAME is not set, and only virbr* is up"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """An interface, the address that peers get, and the reason for the choice. `interface` is "" if no interface has it."""

    interface: str
    ip: str
    reason: str


def effective(value: str | None) -> str | None:
    """The value as NCCL and torch read it: fewer than two characters count as not set."""
    return value if value and len(value) > 1 else None


def matching(name: str, spec: str) -> bool:
    """Whether an interface name matches `NCCL_SOCKET_IFNAME=spec`: `[^][=]item,item`, prefixes unless `=`.

    An empty list matches everything. A `:port` after an item is not part of the name.
    """
    excludes = spec.startswith("^")
    rest = spec[1:] if excludes else spec
    exact = rest.startswith("=")
    items = [item.partition(":")[0] for item in rest[exact:].split(",")]
    patterns = [item for item in items if item]
    matches = not patterns or any(name == item if exact else name.startswith(item) for item in patterns)
    return matches is not excludes


def choose_for_nccl(net: Net, variables: Mapping[str, str]) -> tuple[Choice, ...]:
    """The interfaces in NCCL's order, at most MAX_INTERFACES; empty: "no socket interface found"."""
    family = FAMILIES.get(variables.get("NCCL_SOCKET_FAMILY", ""))
    spec = effective(variables.get("NCCL_SOCKET_IFNAME"))
    if spec is not None:
        return tuple(_find(net, spec, family, f"NCCL_SOCKET_IFNAME={spec:.60}"))
    for prefixes, reason in AUTOMATIC:
        if prefixes.startswith("^"):
            subnet = _in_subnet_of_comm_id(net, variables)
            if subnet:
                return subnet
        choices = tuple(_find(net, prefixes, family, reason))
        if choices:
            return choices
    return ()


def choose_for_gloo(net: Net, variables: Mapping[str, str]) -> tuple[Choice, ...]:
    """What Gloo advertises; empty when GLOO_SOCKET_IFNAME names nothing usable, or the hostname was not resolved."""
    spec = effective(variables.get("GLOO_SOCKET_IFNAME"))
    if spec is not None:
        return tuple(_named(net, spec))
    if net.own_name is None:
        return ()
    for ip in net.own_name.addresses:
        if net.is_own(ip):
            interface = net.interface_of(ip)
            name = interface.name if interface else "lo"
            return (Choice(name, ip, f"the hostname {net.hostname} resolves to it"),)
    why = "does not resolve" if not net.own_name.addresses else "resolves to no address of this node"
    return (Choice("lo", "127.0.0.1", f"the hostname {net.hostname} {why}: Gloo falls back to loopback"),)


def _named(net: Net, spec: str) -> Iterator[Choice]:
    for name in spec.split(","):
        found = net.interface(name)
        address = next((a for _, a in _in_order((found,))), None) if found else None
        if address is not None:
            yield Choice(name, address.ip, f"GLOO_SOCKET_IFNAME={spec:.60}")


def _in_order(interfaces: tuple[Interface, ...]) -> Iterator[tuple[Interface, Address]]:
    """As getifaddrs lists them on Linux: the IPv4 addresses of all interfaces, then all IPv6 ones."""
    for family in ("ipv4", "ipv6"):
        for interface in interfaces:
            for address in interface.addresses:
                if address.family == family:
                    yield interface, address


def _find(net: Net, spec: str, family: str | None, reason: str) -> Iterator[Choice]:
    seen: set[str] = set()
    for interface, address in _in_order(net.interfaces):
        if not interface.is_running or interface.name in seen or len(seen) >= MAX_INTERFACES:
            continue
        if family is not None and address.family != family:
            continue
        if address.family == "ipv6" and ipaddress.ip_address(address.ip.partition("%")[0]).is_loopback:
            continue
        if matching(interface.name, spec):
            seen.add(interface.name)
            yield Choice(interface.name, address.ip, reason)


def _in_subnet_of_comm_id(net: Net, variables: Mapping[str, str]) -> tuple[Choice, ...]:
    """The interface in the subnet of NCCL_COMM_ID, if that is an address and not a name."""
    given = effective(variables.get("NCCL_COMM_ID"))
    if given is None:
        return ()
    host = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
    try:
        wanted = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ()
    for interface, address in _in_order(net.interfaces):
        own = ipaddress.ip_interface(f"{address.ip.partition('%')[0]}/{address.prefix_length}")
        if own.version == wanted.version and wanted in own.network:
            return (Choice(interface.name, address.ip, f"in the subnet of NCCL_COMM_ID={given:.60}"),)
    return ()


def names_matching(net: Net, spec: str) -> tuple[str, ...]:
    """Names of all interfaces that match `NCCL_SOCKET_IFNAME=spec`, including those that are down."""
    return tuple(i.name for i in net.interfaces if matching(i.name, spec))
