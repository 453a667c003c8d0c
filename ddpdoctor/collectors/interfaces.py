"""The network interfaces: names, addresses, state, kind, MTU and speed, from getifaddrs and /sys/class/net."""

from __future__ import annotations

import ipaddress
import re
import socket

from ddpdoctor.collectors.machine import Root
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.net import Address, Interface

__all__ = ["read_interfaces"]

SYS = "/sys/class/net"
ARPHRD_INFINIBAND, ARPHRD_LOOPBACK, ARPHRD_NONE, ARPHRD_PPP = 32, 772, 65534, 512
IFF_UP = 0x1
DEVTYPES = {"bridge": "bridge", "bond": "bond", "vlan": "vlan", "wlan": "wireless", "wireguard": "tunnel",
            "vxlan": "tunnel", "geneve": "tunnel"}  # fmt: skip
DOCKER = re.compile(r"docker\d|br-[0-9a-f]{12}$")
TUNNEL = re.compile(r"(tun|tap|wg|tailscale|ipip|sit|gre|ppp|zt|flannel|CloudflareWARP|utun)")
VIRTUAL_SPEEDS = (-1, 0, 0xFFFFFFFF)


def read_interfaces(root: Root, gaps: list[Gap]) -> tuple[Interface, ...]:
    """The interfaces in the kernel's order; what cannot be read is None, with the reason in `gaps`."""
    addresses = _addresses(gaps) if root.is_real else {}
    if not root.is_real:
        gaps.append(Gap("net.interfaces.addresses", "not this machine's own file tree", Why.NOT_HERE))
    names = sorted({*root.names(SYS), *addresses}, key=lambda n: (root.number(f"{SYS}/{n}/ifindex") or 1 << 30, n))
    if not names:
        gaps.append(Gap("net.interfaces", f"neither getifaddrs nor {SYS} lists an interface"))
    default = _default_routes(root)
    names = [name for name in names if root.exists(f"{SYS}/{name}/ifindex") or name in addresses]
    return tuple(_interface(root, name, addresses.get(name, ()), name in default) for name in names)


def _interface(root: Root, name: str, addresses: tuple[Address, ...], has_default_route: bool) -> Interface:
    at = f"{SYS}/{name}"
    flags = root.line(f"{at}/flags")
    # Without /sys, getifaddrs is the witness: it lists the addresses of interfaces that are there.
    is_up = bool(int(flags, 16) & IFF_UP) if flags and re.fullmatch(r"0x[0-9a-fA-F]+", flags) else bool(addresses)
    state = root.line(f"{at}/operstate") or "unknown"
    speed = root.number(f"{at}/speed")
    return Interface(
        name=name,
        is_up=is_up,
        is_running=is_up and state in ("up", "unknown"),
        kind=_kind(root, name),
        mtu=root.number(f"{at}/mtu"),
        speed_mbit_per_s=None if speed is None or speed in VIRTUAL_SPEEDS else speed,
        addresses=addresses,
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


def _addresses(gaps: list[Gap]) -> dict[str, tuple[Address, ...]]:
    import psutil

    try:
        listed = psutil.net_if_addrs()
    except OSError as error:
        gaps.append(Gap("net.interfaces.addresses", f"getifaddrs failed: {error.strerror}"))
        return {}
    families = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6"}
    return {
        name: tuple(
            Address(entry.address, _prefix_length(entry.netmask, families[entry.family]), families[entry.family])
            for entry in entries
            if entry.family in families
        )
        for name, entries in listed.items()
    }


def _prefix_length(netmask: str | None, family: str) -> int:
    widest = 32 if family == "ipv4" else 128
    if not netmask:
        return widest
    return int(ipaddress.ip_address(netmask)).bit_count()


def _default_routes(root: Root) -> set[str]:
    """Names of the interfaces that a default route leaves through (/proc/net/route, /proc/net/ipv6_route)."""
    found = set()
    for line in (root.line("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            found.add(words[0])
    for line in (root.line("/proc/net/ipv6_route") or "").splitlines():
        words = line.split()
        if len(words) > 9 and words[1] == "00" and not int(words[0], 16) and words[9] != "lo":
            found.add(words[9])
    return found
