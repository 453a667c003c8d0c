"""TCP connections with a timeout, and the table from errno to outcome.

Does not import asyncio, because import time counts for every rank of a probe; `network.aio` has the same for asyncio.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from ddpdoctor.facts.reachability import ConnectOutcome

__all__ = [
    "OUT_OF_FILES",
    "OUT_OF_MEMORY",
    "PROMPT_SECONDS",
    "can_bind",
    "connect",
    "family_of",
    "has_address",
    "listen",
    "listen_as_master",
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
"""errno values if the process or the machine is out of file descriptors, which is not about the connection."""
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
PROMPT_SECONDS = 0.5
"""An earlier EHOSTUNREACH was sent by a firewall: the kernel needs about 3 s until ARP times out."""
BACKLOG = 4096


def outcome_of(error: OSError) -> ConnectOutcome:
    """The outcome for an error of connecting, or of a connection."""
    if isinstance(error, TimeoutError):
        return ConnectOutcome.NO_ANSWER
    return OUTCOMES.get(error.errno or 0, ConnectOutcome.FAILED)


def refined(outcome: ConnectOutcome, address: str, seconds: float) -> ConnectOutcome:
    """The outcome, refined by its duration: EHOSTUNREACH may be due to this machine's routing table, a firewall, or an ARP
    timeout.
    """
    if outcome is not ConnectOutcome.NO_HOST:
        return outcome
    if source_address(address) is None:
        return ConnectOutcome.NO_ROUTE
    return ConnectOutcome.PROHIBITED if seconds < PROMPT_SECONDS else ConnectOutcome.NO_HOST


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def connect(address: str, port: int, seconds: float, segment_bytes: int = 0) -> socket.socket:
    """A connection to an address (not a name), whose timeout is `seconds` as well; `segment_bytes` as for `prepare`.

    Raises:
        OSError: connecting failed; see `outcome_of`.
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
    """Set the socket options before connecting: no delay, and the largest TCP segment (0: the kernel's choice)."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if segment_bytes:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)


def source_address(address: str) -> str | None:
    """The source address of packets to `address`, None without a route. Nothing is sent."""
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


def has_address(host: str) -> bool:
    """Whether `host` is an address (not a name) of this machine at which it receives what is sent there: a service address
    of Kubernetes may be on an interface as well, but its packets arrive at another one.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name, which may mean another interface on each node
    if address.is_unspecified or ("KUBERNETES_SERVICE_HOST" in os.environ and not address.is_loopback):
        return False
    return can_bind(host)


def listen_as_master(port: int, master: str, segment_bytes: int = 0) -> socket.socket:
    """As `listen`, only at `master` if that is an address of this machine: other networks cannot connect. Else at all.

    Raises:
        OSError: the port is in use at any address, where the store of the job will listen.
    """
    made = listen(port, segment_bytes=segment_bytes)
    if not has_address(master):
        return made
    made.close()
    return listen(port, master, segment_bytes)


def listen(port: int, host: str = "", segment_bytes: int = 0) -> socket.socket:
    """A listening, nonblocking socket; `host` "" is all addresses, IPv6 and IPv4 on one socket, as in torch's TCPStore.

    `port` 0 is chosen by the kernel; `segment_bytes` limits the TCP segments of its connections.

    Raises:
        OSError: the port is in use, or no socket can be created.
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
                continue  # IPv6 is disabled on this machine
            raise
        return made
    raise OSError(errno.EAFNOSUPPORT, "neither IPv6 nor IPv4 is available")
