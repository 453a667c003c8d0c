"""Asking the resolver, with patience: getaddrinfo and getnameinfo block in C and cannot be told to stop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from ddpdoctor.facts.net import Lookup
from ddpdoctor.system.timeouts import NoAnswer, answer

__all__ = ["ask", "ask_back", "ask_full_name"]

LONGEST_NAME = 253
"""RFC 1035; glibc refuses more."""


def ask(name: str, seconds: float) -> Lookup:
    """What `name` resolves to, in getaddrinfo's order, each address once."""
    if len(name) > LONGEST_NAME:
        return Lookup(name[:LONGEST_NAME] + "…", error=f"a name of {len(name)} characters; DNS allows {LONGEST_NAME}")

    def look() -> Lookup:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return Lookup(name, tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))

    return _timed(name, look, seconds)


def ask_full_name(hostname: str, seconds: float) -> Lookup:
    """The full name that `socket.getfqdn()` gives (what c10d publishes), and what that resolves to."""

    def look() -> Lookup:
        full = socket.getfqdn(hostname)
        return ask(full, seconds)

    return _timed(hostname, look, seconds)


def ask_back(ip: str, seconds: float) -> Lookup:
    """The reverse lookup of an address, as torch's store does it for each client."""

    def look() -> Lookup:
        name, _ = socket.getnameinfo((ip, 0), socket.NI_NAMEREQD)
        return Lookup(name, (ip,))

    found = _timed("", look, seconds)
    return Lookup(found.name, (ip,), found.seconds, found.error, found.is_late)


def _timed(name: str, look: Callable[[], Lookup], seconds: float) -> Lookup:
    started = time.monotonic()
    try:
        found = answer(look, seconds)
    except NoAnswer:
        return Lookup(name, seconds=round(time.monotonic() - started, 3), error="no answer in time", is_late=True)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
        return Lookup(name, seconds=round(time.monotonic() - started, 3), error=reason)
    took = round(time.monotonic() - started, 3)
    return Lookup(found.name, found.addresses, took, found.error, found.is_late)
