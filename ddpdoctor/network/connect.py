"""TCP connections with a deadline, and the one table from an errno to what came back.

Imports no asyncio, because every rank of a probe pays for what it imports; `network.aio` has the same for asyncio.
"""

from __future__ import annotations

import errno
import socket

from ddpdoctor.facts.reachability import ConnectOutcome

__all__ = [
    "OUT_OF_FILES",
    "OUT_OF_MEMORY",
    "PROMPT_SECONDS",
    "can_bind",
    "connect",
    "family_of",
    "listen",
    "outcome_of",
    "prepare",
    "refined",
    "source_address",
]

OUTCOMES = {
    errno.ECONNREFUSED: ConnectOutcome.REFUSED,
    errno.ECONNRESET: ConnectOutcome.RESET,
    errno.ETIMEDOUT: ConnectOutcome.NO_ANSWER,
    errno.ENETUNREACH: ConnectOutcome.NO_ROUTE,
    errno.EINVAL: ConnectOutcome.NO_ROUTE,
    errno.EHOSTUNREACH: ConnectOutcome.NO_HOST,
    errno.EACCES: ConnectOutcome.PROHIBITED,
    errno.EPERM: ConnectOutcome.PROHIBITED,
}
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
"""errno of a process, or a machine, that may not open another file or socket: not about the connection."""
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
PROMPT_SECONDS = 0.5
"""An EHOSTUNREACH that comes sooner was sent by a firewall; the kernel needs about 3 s to find no host by ARP."""
BACKLOG = 4096


def outcome_of(error: OSError) -> ConnectOutcome:
    """What an error of connecting, or of a connection, says."""
    if isinstance(error, TimeoutError):
        return ConnectOutcome.NO_ANSWER
    return OUTCOMES.get(error.errno or 0, ConnectOutcome.FAILED)


def refined(outcome: ConnectOutcome, address: str, seconds: float) -> ConnectOutcome:
    """An outcome after `seconds`, where EHOSTUNREACH alone does not say who sent it: this machine's routing table, a
    firewall on the way, or the kernel that found no host by ARP.
    """
    if outcome is not ConnectOutcome.NO_HOST:
        return outcome
    if source_address(address) is None:
        return ConnectOutcome.NO_ROUTE
    return ConnectOutcome.PROHIBITED if seconds < PROMPT_SECONDS else ConnectOutcome.NO_HOST


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def connect(address: str, port: int, seconds: float, segment_bytes: int = 0) -> socket.socket:
    """A connection to an address (no name), whose timeout is `seconds` as well; `segment_bytes` as for `prepare`.

    Raises:
        OSError: there is none; `outcome_of` says what came back.
    """
    link = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        prepare(link, segment_bytes)
        link.settimeout(seconds)
        link.connect((address, port))
    except BaseException:
        link.close()
        raise
    return link


def prepare(link: socket.socket, segment_bytes: int) -> None:
    """Set what is set before a connection is made: no delay, and the largest TCP segment, 0 for what the kernel chooses."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if segment_bytes:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)


def source_address(address: str) -> str | None:
    """The own address that packets to `address` leave from, None without a route. Nothing is sent."""
    try:
        with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def can_bind(address: str) -> bool:
    """Whether this machine has the address."""
    try:
        with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def listen(port: int, host: str = "", segment_bytes: int = 0) -> socket.socket:
    """A socket that listens and does not block; `host` "" is all addresses, IPv6 and IPv4 in one, as torch's TCPStore does.

    `port` 0 is one that the kernel chooses; `segment_bytes` limits the TCP segments of its connections.

    Raises:
        OSError: the port is taken, or no socket can be made.
    """
    addresses = (host,) if host else ("::", "0.0.0.0")
    for address in addresses:
        try:
            made = socket.socket(family_of(address), socket.SOCK_STREAM)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
            raise
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if made.family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if segment_bytes:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
            made.bind((address, port))
            made.listen(BACKLOG)
            made.setblocking(False)
        except OSError as error:
            made.close()
            if address == "::" and error.errno == errno.EADDRNOTAVAIL:
                continue  # IPv6 is switched off on this machine
            raise
        return made
    raise OSError(errno.EAFNOSUPPORT, "neither IPv6 nor IPv4 here")
