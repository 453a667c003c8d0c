"""Replaces hosts and addresses with aliases, consistently in all files: equal values stay equal, subnets stay subnets."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.late_pattern import pattern
from ddpdoctor.privacy.host_names import LIST, hosts_in

__all__ = ["with_aliases"]

_V4 = pattern(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(/\d{1,2})?(?![\w.]*\.\d)")
_V6 = pattern(r"(?<![\w:.])((?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4})(?![\w:])")
_MAC = pattern(r"(?<![\w:])((?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2})(?![\w:])")
FREE = 4
"""Names with a digit and at least this length cannot be part of another word."""


def with_aliases(value: Any, names: Iterable[str], kept: Iterable[str] = ()) -> Any:
    """JSON values with every host's name and address replaced by its alias. Strings in `kept`, the format's own words, are
    unchanged even if a host has such a name.
    """
    return _replaced(value, _pattern(tuple(names)), frozenset(kept))


def _pattern(names: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern for every name as a separate word, and for all hosts in their domains. Names with a digit also match between
    underscores and hyphens, as in `rank0_gpu17.log`.
    """
    if not names:
        return None
    free = "|".join(re.escape(name) for name in names if len(name) >= FREE and re.search(r"\d", name))
    fixed = "|".join(re.escape(name) for name in names)
    domains = {part for name in names for part in _domains(name)}
    inside = "|".join(re.escape(domain) for domain in sorted(domains, key=len, reverse=True))
    parts = [rf"(?<![\w.-])(?:[A-Za-z0-9][\w-]*\.)+(?:{inside})(?![\w-])"] if inside else []
    parts += [rf"(?<![A-Za-z0-9_-])(?:{fixed})(?![A-Za-z0-9_-])"]
    parts += [rf"(?<![A-Za-z0-9])(?:{free})(?![A-Za-z0-9])"] if free else []
    return re.compile("|".join(parts), re.IGNORECASE)


def _domains(name: str) -> Iterable[str]:
    """`hpc.example.edu` and `example.edu` of `gpu1.hpc.example.edu`; none for a name with one dot."""
    labels = name.split(".")
    return [".".join(labels[at:]) for at in range(1, len(labels) - 1)] if len(labels) > 2 else []


def _replaced(value: Any, names: re.Pattern[str] | None, kept: frozenset[str]) -> Any:
    if isinstance(value, str):
        if value in kept:
            return value
        text = LIST.sub(lambda m: ",".join(map(_host, hosts_in(m[0]))) if names else m[0], value)
        text = names.sub(lambda m: _host(m[0]), text) if names is not None else text
        text = _MAC.sub(lambda m: _mac(m[1]), text)
        text = _V4.sub(lambda m: _v4(m[1], m[2] or ""), text)
        return _V6.sub(lambda m: _v6(m[1]), text)
    if isinstance(value, list):
        return [_replaced(item, names, kept) for item in value]
    if isinstance(value, dict):
        return {_replaced(key, names, kept): _replaced(item, names, kept) for key, item in value.items()}
    return value


def _host(name: str) -> str:
    """`host-3f9a1c`: the same for the short and the full name."""
    return f"host-{_digest(name.partition('.')[0].lower())[:3].hex()}"


def _v4(text: str, prefix: str) -> str:
    """Every octet is changed depending on those before it, so that common prefixes and private networks are preserved."""
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
    """The vendor's part is kept."""
    octets = text.split(":")
    own = _digest(text.lower())[: len(octets) - 3]
    return ":".join((*octets[:3], *(f"{octet:02x}" for octet in own.ljust(len(octets) - 3, b"\0"))))


def _digest(content: str | bytes) -> bytes:
    return hashlib.blake2b(
        content.encode() if isinstance(content, str) else content, digest_size=32, person=b"ddpdoctor"
    ).digest()
