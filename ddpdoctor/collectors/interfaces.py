"""The network interfaces: names, addresses, state, kind, MTU and speed, from getifaddrs and /sys/class/net."""

from __future__ import annotations

import ipaddress
import re
import socket

from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.net import Address, Interface
from ddpdoctor.system.machine import Root

__all__ = ["read_interfaces"]

SYS = "/sys/class/net"
ARPHRD_INFINIBAND, ARPHRD_LOOPBACK, ARPHRD_NONE, ARPHRD_PPP = 32, 772, 65534, 512
IFF_UP = 0x1
DEVTYPES = {"bridge": "bridge", "bond": "bond", "vlan": "vlan", "wlan": "wireless", "wireguard": "tunnel",
            "vxlan": "tunnel", "geneve": "tunnel"}  # fmt: skip
DOCKER = re.compile(r"docker\d|br-[0-9a-f]{12}$")
TUNNEL = re.compile(r"(tun|tap|wg|tailscale|ipip|sit|gre|ppp|zt|flannel|CloudflareWARP|utun)")
NO_SPEEDS = (-1, 0, 65535, 0xFFFFFFFF)
"""Values with which drivers report an unknown speed."""


def read_interfaces(root: Root, gaps: list[Gap]) -> tuple[Interface, ...]:
    """The interfaces in the kernel's order; unreadable fields are None, with the reason in `gaps`.

    The kernel reports this process's own network namespace; /sys may have been mounted for another one, so only the
    kind is read from it.
    """
    default = _default_routes(root)
    if not root.is_real:
        gaps.append(Gap("net.interfaces.addresses", "not available in a captured file tree", Why.NOT_HERE))
        names = [name for name in root.names(SYS) if root.exists(f"{SYS}/{name}/ifindex")]
        return tuple(_captured(root, name, name in default) for name in names)
    import psutil

    try:
        names = [name for _, name in socket.if_nameindex()]
        addresses, stats = _addresses(), psutil.net_if_stats()
    except OSError as error:
        gaps.append(Gap("net.interfaces", f"the interfaces could not be listed: {error.strerror}"))
        return ()
    interfaces = []
    for name in names:
        state = stats.get(name)
        flags = state.flags.split(",") if state else []
        interfaces.append(
            Interface(
                name=name,
                is_up="up" in flags,
                is_running="running" in flags,
                kind=_kind(root, name),
                mtu=state.mtu if state else None,
                speed_mbit_per_s=None if state is None or state.speed in NO_SPEEDS else state.speed,
                addresses=addresses.get(name, ()),
                has_default_route=name in default,
            )
        )
    return tuple(interfaces)


def _captured(root: Root, name: str, has_default_route: bool) -> Interface:
    at = f"{SYS}/{name}"
    flags = root.line(f"{at}/flags") or ""
    is_up = bool(int(flags, 16) & IFF_UP) if re.fullmatch(r"0x[0-9a-fA-F]+", flags) else False
    speed = root.number(f"{at}/speed")
    return Interface(
        name=name,
        is_up=is_up,
        is_running=is_up and (root.line(f"{at}/operstate") or "unknown") in ("up", "unknown"),
        kind=_kind(root, name),
        mtu=root.number(f"{at}/mtu"),
        speed_mbit_per_s=None if speed in NO_SPEEDS else speed,
        has_default_route=has_default_route,
    )


def _kind(root: Root, name: str) -> str:
    at = f"{SYS}/{name}"
    hardware = root.number(f"{at}/type")
    devtype = re.search(r"^DEVTYPE=(\S+)", root.line(f"{at}/uevent") or "", re.M)
    if hardware == ARPHRD_LOOPBACK or name == "lo":
        return "loopback"
    if hardware == ARPHRD_INFINIBAND:
        return "infiniband"
    if DOCKER.match(name):
        return "docker"
    if devtype and devtype[1] in DEVTYPES:
        return DEVTYPES[devtype[1]]
    if root.exists(f"{at}/bridge") or name.startswith("virbr"):
        return "bridge"
    if root.exists(f"{at}/bonding"):
        return "bond"
    if hardware in (ARPHRD_NONE, ARPHRD_PPP) or root.exists(f"{at}/tun_flags") or TUNNEL.match(name):
        return "tunnel"
    if root.exists(f"{at}/device"):
        return "wireless" if root.exists(f"{at}/wireless") else "physical"
    peer, own = root.number(f"{at}/iflink"), root.number(f"{at}/ifindex")
    if name.startswith("veth") or (peer is not None and peer != own):
        return "veth"
    return "virtual" if "/virtual/" in root.real(at) else "physical"


def _addresses() -> dict[str, tuple[Address, ...]]:
    import psutil

    families = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6"}
    return {
        name: tuple(
            Address(entry.address, _prefix_length(entry.netmask, families[entry.family]), families[entry.family])
            for entry in entries
            if entry.family in families
        )
        for name, entries in psutil.net_if_addrs().items()
    }


def _prefix_length(netmask: str | None, family: str) -> int:
    widest = 32 if family == "ipv4" else 128
    if not netmask:
        return widest
    return int(ipaddress.ip_address(netmask)).bit_count()


def _default_routes(root: Root) -> set[str]:
    """Names of the interfaces with a default route (/proc/net/route, /proc/net/ipv6_route)."""
    default_routes = set()
    for line in (root.line("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            default_routes.add(words[0])
    for line in (root.line("/proc/net/ipv6_route") or "").splitlines():
        words = line.split()
        if len(words) > 9 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            default_routes.add(words[9])
    return default_routes
