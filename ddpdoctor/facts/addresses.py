"""How a host is written where one process tells another where to connect: names, addresses, and what is neither."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["is_ip", "is_loopback", "malformation"]

HOST_LIMIT = 253
"""Characters in a host name, RFC 1035."""
_LOOPBACK = re.compile(
    r"localhost|localhost\.localdomain|localhost[46]|ip6-localhost|ip6-loopback"
    r"|127(\.\d{1,3}){1,3}|0\.0\.0\.0|::1?|(0+:){7}0*1|::ffff:127(\.\d{1,3}){3}",
    re.IGNORECASE,
)


def is_loopback(host: str) -> bool:
    """A name or address by which every machine means itself, `0.0.0.0` included: connecting to it stays at home."""
    return _LOOPBACK.fullmatch(host.strip("[]").rstrip(".")) is not None


def malformation(value: str) -> str | None:
    """Why a value of MASTER_ADDR is no bare host name or address, as the end of a sentence; None when it is one."""
    if is_ip(value):
        return None
    if "://" in value:
        return "is a URL"
    if re.search(r"\$[({\w]|`", value):
        return "holds a shell expression that was not expanded"
    if re.fullmatch(r"\[.*\](:\d+)?|[^:]*:\d*", value):
        return "holds brackets of an IPv6 URL" if value.endswith("]") else "holds a port"
    if re.search(r"[,\s]|\[\d+[-\],]", value):
        return "holds more than one host or a blank"
    if not re.fullmatch(r"[\w.-]+", value):
        return "holds characters that no host name has"
    if re.fullmatch(r"\d+(\.\d+){3}", value):
        return "is no IPv4 address (each of its numbers is at most 255)"
    return f"has {len(value)} characters, a host name at most {HOST_LIMIT}" if len(value) > HOST_LIMIT else None


def is_ip(value: str) -> bool:
    """An IPv4 or IPv6 address, and no name."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True
