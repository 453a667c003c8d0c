"""How a host is written in MASTER_ADDR and rendezvous endpoints: names, addresses, and malformed values."""

from __future__ import annotations

import ipaddress
import re

from ddpdoctor.late_pattern import pattern

__all__ = ["is_ip", "is_loopback", "malformation"]

HOST_LIMIT = 253
"""Characters in a host name, RFC 1035."""
_LOOPBACK = pattern(
    r"localhost|localhost\.localdomain|localhost[46]|ip6-localhost|ip6-loopback"
    r"|127(\.\d{1,3}){1,3}|0\.0\.0\.0|::1?|(0+:){7}0*1|::ffff:127(\.\d{1,3}){3}",
    re.IGNORECASE,
)
_MALFORMATIONS = (
    (pattern(r"^\d{1,10}$"), "is a number, not a host"),
    (pattern(r"://"), "is a URL"),
    (pattern(r"\$[({\w]|`"), "contains a shell expression that was not expanded"),
    (pattern(r"\A\[.*\]\Z"), "has the brackets of an IPv6 URL"),
    (pattern(r"\A(\[.*\]:\d+|[^:]*:\d*)\Z"), "includes a port"),
    (pattern(r"[,\s]|\[\d+[-\],]"), "contains more than one host, or a space"),
    (pattern(r"[^\w.-]|\A\Z"), "contains characters that are not allowed in host names"),
    (pattern(r"\A\d+(\.\d+){3}\Z"), "is not an IPv4 address (each number is at most 255)"),
)
"""Malformed values of `MASTER_ADDR`, and what is wrong with them. The first match counts."""


def is_loopback(host: str) -> bool:
    """A name or address that means the local machine on every machine, `0.0.0.0` included."""
    return _LOOPBACK.fullmatch(host.strip("[]").rstrip(".")) is not None


def malformation(value: str) -> str | None:
    """What is wrong with a value of `MASTER_ADDR`, as the end of a sentence; None for a bare host name or address."""
    if is_ip(value):
        return None
    reason = next((reason for known, reason in _MALFORMATIONS if known.search(value)), None)
    if reason is None and len(value) > HOST_LIMIT:
        return f"has {len(value)} characters; a host name has at most {HOST_LIMIT}"
    return reason


def is_ip(value: str) -> bool:
    """Whether the value is an IPv4 or IPv6 address, not a name."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True
