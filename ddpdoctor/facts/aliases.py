"""Hosts and addresses under other names, the same in every file: what is equal stays equal, what is a subnet stays one."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from ddpdoctor.facts.addresses import is_loopback

__all__ = ["host_names_in", "with_aliases"]

_V4 = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(/\d{1,2})?(?![\w.]*\.\d)")
_V6 = re.compile(r"(?<![\w:.])((?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4})(?![\w:])")
_LIST = re.compile(r"([A-Za-z][\w.-]*)\[([\d,-]+)\]")
_MAC = re.compile(r"(?<![\w:])((?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2})(?![\w:])")
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST_HET_GROUP_0")
_NAMES = (
    "HOSTNAME",
    "MASTER_ADDR",
    "SLURMD_NODENAME",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SUBMIT_HOST",
    "SLURM_TOPOLOGY_ADDR",
    "SM_CURRENT_HOST",
    "PET_MASTER_ADDR",
    "PET_LOCAL_ADDR",
    "PET_RDZV_ENDPOINT",
    "LSB_HOSTS",
    "PMIX_HOSTNAME",
)
MOST_HOSTS = 10_000
SHORTEST = 2
"""A host's name has at least so many characters here: shorter ones would be found in every text."""


def host_names_in(saved: Any) -> tuple[str, ...]:
    """The names of hosts that collected facts tell, the longest first."""
    environ = (saved.get("environ") or {}).get("variables", {})
    net = saved.get("net") or {}
    names = {str(saved.get("hostname", "")), str(net.get("hostname", ""))}
    for key in ("own_name", "full_name", "master_name"):
        names |= _looked_up(net.get(key))
    for each in net.get("reverse", ()):
        names |= _looked_up(each)
    for name in _NAMES:
        names |= {word.rpartition("@")[2].partition(":")[0] for word in str(environ.get(name, "")).split()}
    for name in _LISTS:
        names |= set(hosts_in(str(environ.get(name, ""))))
    for process in (saved.get("hang") or {}).get("processes", ()):
        names.add(str(process.get("host", "")))
        names |= {str(v).partition(":")[0] for k, v in process.get("variables", {}).items() if k in _NAMES}
    short = {name.partition(".")[0] for name in names if not _is_address(name)}
    return tuple(
        sorted({n for n in names | short if len(n) >= SHORTEST and not _is_plain(n)}, key=lambda n: (-len(n), n))
    )


def hosts_in(nodelist: str) -> tuple[str, ...]:
    """The hosts that Slurm's list names: `gpu[001-003,7],login`."""
    found: list[str] = [word for word in _LIST.sub("", nodelist).split(",") if word]
    for stem, numbers in _LIST.findall(nodelist):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            if first.isdigit() and (not last or last.isdigit()):
                count = range(int(first), min(int(last or first), int(first) + MOST_HOSTS) + 1)
                found += [f"{stem}{number:0{len(first)}d}" for number in count]
    return tuple(found)


def with_aliases(value: Any, names: Iterable[str]) -> Any:
    """JSON values with every host's name and address replaced by its alias."""
    known = tuple(names)
    pattern = (
        re.compile("|".join(rf"(?<![A-Za-z0-9_-]){re.escape(name)}(?![A-Za-z0-9_-])" for name in known))
        if known
        else None
    )
    return _replaced(value, pattern)


def _replaced(value: Any, names: re.Pattern[str] | None) -> Any:
    if isinstance(value, str):
        text = _LIST.sub(lambda m: ",".join(map(_host, hosts_in(m[0]))) if names else m[0], value)
        text = names.sub(lambda m: _host(m[0]), text) if names is not None else text
        text = _MAC.sub(lambda m: _mac(m[1]), text)
        text = _V4.sub(lambda m: _v4(m[1], m[2] or ""), text)
        return _V6.sub(lambda m: _v6(m[1]), text)
    if isinstance(value, list):
        return [_replaced(each, names) for each in value]
    if isinstance(value, dict):
        return {_replaced(key, names): _replaced(each, names) for key, each in value.items()}
    return value


def _host(name: str) -> str:
    """`host-3f9a1c`: the same for the short and the full name."""
    return f"host-{_digest(name.partition('.')[0].lower())[:3].hex()}"


def _v4(text: str, prefix: str) -> str:
    """Every octet is changed by what stands before it, so that common beginnings, and private networks, stay common."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return text + prefix
    if (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or int(address) >> 24 == 255
    ):
        return text + prefix
    octets = list(address.packed)
    kept = 2 if octets[0] == 192 and octets[1] == 168 else 1
    found = octets[:kept]
    for at in range(kept, 4):
        mask = _digest(bytes(octets[:at]))[0]
        found.append(octets[at] ^ (mask & 15 if octets[0] == 172 and 16 <= octets[1] < 32 and at == 1 else mask))
    changed = ipaddress.IPv4Address(bytes(found))
    if prefix and int(prefix[1:]) <= 32:
        network = ipaddress.IPv4Network(f"{text}{prefix}", strict=False)
        if network.network_address == address:
            changed = ipaddress.IPv4Network(f"{changed}{prefix}", strict=False).network_address
    return f"{changed}{prefix}"


def _v6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.ipv4_mapped is not None:
        return text
    groups = [int.from_bytes(address.packed[at : at + 2], "big") for at in range(0, 16, 2)]
    found = groups[:1]
    for at in range(1, 8):
        mask = int.from_bytes(_digest(repr(groups[:at]).encode())[:2], "big")
        found.append(groups[at] ^ mask if groups[at] else 0)
    return str(ipaddress.IPv6Address(b"".join(group.to_bytes(2, "big") for group in found)))


def _mac(text: str) -> str:
    """The maker's part stays."""
    octets = text.split(":")
    own = _digest(text.lower())[: len(octets) - 3]
    return ":".join((*octets[:3], *(f"{octet:02x}" for octet in own.ljust(len(octets) - 3, b"\0"))))


def _digest(content: str | bytes) -> bytes:
    return hashlib.blake2b(
        content.encode() if isinstance(content, str) else content, digest_size=32, person=b"ddpdoctor"
    ).digest()


def _looked_up(found: Any) -> set[str]:
    """The names in a `Lookup`."""
    if not isinstance(found, dict):
        return set()
    return {str(found.get("name", ""))}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_plain(name: str) -> bool:
    return is_loopback(name) or _is_address(name) or name.isdigit() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name)
