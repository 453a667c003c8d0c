"""Name lookups with a timeout: getaddrinfo and getnameinfo block in C and cannot be cancelled."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace

from ddpdoctor.facts.reachability import Lookup
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

__all__ = ["late", "look_up", "look_up_canonical", "look_up_fqdn", "look_up_now", "look_up_reverse"]

LONGEST_NAME = 253
"""RFC 1035; glibc rejects longer names."""


def look_up(name: str, seconds: float) -> Lookup:
    """What `name` resolves to, in getaddrinfo's order, each address once; a late lookup after `seconds`."""
    return _timed(name, lambda: look_up_now(name), seconds)


def look_up_now(name: str) -> Lookup:
    """The same without a timeout: blocks as long as the resolver, for callers in a daemon thread."""
    if len(name) > LONGEST_NAME:
        return Lookup(name[:LONGEST_NAME] + "…", error=f"{len(name)} characters; DNS allows {LONGEST_NAME}")
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Lookup(name, error=_reason(error))
    return Lookup(name, tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))


def look_up_fqdn(hostname: str, seconds: float) -> Lookup:
    """The name from `socket.getfqdn()`, which c10d advertises, and what it resolves to."""
    return _timed(hostname, lambda: look_up(socket.getfqdn(hostname), seconds), seconds)


def look_up_reverse(address: str, seconds: float) -> Lookup:
    """The name of an address, as torch's store looks it up for each client."""

    def ask() -> Lookup:
        try:
            name, _ = socket.getnameinfo((address, 0), socket.NI_NAMEREQD)
        except (OSError, UnicodeError) as error:
            return Lookup("", error=_reason(error))
        return Lookup(name)

    return replace(_timed("", ask, seconds), addresses=(address,))


def look_up_canonical(name: str) -> list[tuple[str, str]]:
    """Canonical name ("" where the entry has none) and address of each entry, as in torch's c10d rendezvous. Blocks.

    Raises:
        OSError: the name does not resolve.
        UnicodeError: the name is not a valid host name.
    """
    entries = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    return [(entry[3], str(entry[4][0])) for entry in entries]


def late(name: str, seconds: float) -> Lookup:
    """A lookup that was not answered within `seconds`."""
    return Lookup(name, seconds=seconds, error="timed out", is_late=True)


def _timed(name: str, ask: Callable[[], Lookup], seconds: float) -> Lookup:
    started = time.monotonic()
    try:
        lookup = call_with_timeout(ask, seconds)
    except CallTimeout:
        return late(name, round(time.monotonic() - started, 3))
    return replace(lookup, seconds=round(time.monotonic() - started, 3))


def _reason(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
