"""What each host of a job publishes to the others: the supervisor that represents it, and its address."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.network.connect import can_bind
from ddpdoctor.network.resolve import look_up

__all__ = ["HostCard", "gloo_address"]

RESOLVER_SECONDS = 2.0
SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class HostCard:
    """One host: the first supervisor to join represents it, and its echo server answers at `port` with `token`.

    `address` is the source address of packets to the store, "" if others cannot use it: they use the store's address.
    `gloo` is the address that Gloo would advertise, and `gloo_source` its origin: the variable GLOO_SOCKET_IFNAME, the
    hostname, "nothing" (then it is the loopback), or "" if unknown.
    """

    index: int
    host: str
    rank: int
    pid: int
    node_rank: int | None
    local_rank: int | None
    address: str
    port: int
    token: str
    gloo: str
    gloo_source: str


def gloo_address(environ: Mapping[str, str]) -> tuple[str, str]:
    """The address that Gloo would advertise on this host, and its origin; "" for a missing interface, and ("", "") if the
    lookup timed out.

    torch's ProcessGroupGloo: GLOO_SOCKET_IFNAME, else the first address of the hostname that can be bound, else the
    loopback.
    """
    names = environ.get("GLOO_SOCKET_IFNAME", "")
    if len(names) > 1:
        return _address_of(names.partition(",")[0]), "GLOO_SOCKET_IFNAME"
    lookup = look_up(socket.gethostname(), RESOLVER_SECONDS)
    if lookup.is_late:
        return "", ""
    for address in lookup.addresses:
        if can_bind(address):
            return address, "hostname"
    return "127.0.0.1", "nothing"


def _address_of(interface: str) -> str:
    """The address of an interface, "" when it has none or does not exist."""
    if interface not in (name for _, name in socket.if_nameindex()):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", os.fsencode(interface)[:15]))
        except OSError:
            return _ipv6_of(interface)
    return socket.inet_ntoa(answer[20:24])


def _ipv6_of(interface: str) -> str:
    try:
        with open("/proc/net/if_inet6") as file:
            words = [line.split() for line in file]
    except OSError:
        return ""
    return next((socket.inet_ntop(socket.AF_INET6, bytes.fromhex(w[0])) for w in words if w[-1] == interface), "")
