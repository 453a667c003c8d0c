"""Knocking at the master's port from a node that is not the master: what comes back, within two seconds.

The only bytes ever sent are the two harmless queries of torch's TCPStore, VALIDATE and PING.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence

from ddpdoctor.facts.net import Attempt, Outcome
from ddpdoctor.network.ping import PING_SECONDS, answers_ping
from ddpdoctor.network.tcp_info import INFO_BYTES, sent_in_vain
from ddpdoctor.system.machine import Root

__all__ = ["knock", "source_towards"]

ADDRESSES_MAX = 8
PROMPT_SECONDS = 0.5
"""An EHOSTUNREACH that comes sooner was sent by a host on the way; the kernel needs about 3 s to find nobody by ARP."""
VALIDATE = struct.pack("<BI", 0x00, 0x3C85F7CE)
OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.NO_ANSWER,
    errno.ENETUNREACH: Outcome.NO_ROUTE,
    errno.EINVAL: Outcome.NO_ROUTE,
    errno.EACCES: Outcome.PROHIBITED,
    errno.EPERM: Outcome.PROHIBITED,
}


def source_towards(ip: str) -> str | None:
    """The own address that packets to `ip` leave from, None without a route. Nothing is sent."""
    try:
        with socket.socket(_family(ip), socket.SOCK_DGRAM) as probe:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def knock(root: Root, addresses: Sequence[str], port: int, seconds: float) -> tuple[Attempt, ...]:
    """One attempt at each address, all at once."""
    found: dict[str, Attempt] = {}

    def attempt(ip: str) -> None:
        found[ip] = _attempt(root, ip, port, seconds)

    threads = [threading.Thread(target=attempt, args=(ip,), daemon=True) for ip in addresses[:ADDRESSES_MAX]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 2 * PING_SECONDS)
    return tuple(found[ip] for ip in addresses[:ADDRESSES_MAX] if ip in found)


def _attempt(root: Root, ip: str, port: int, seconds: float) -> Attempt:
    started = time.monotonic()
    number: int | None = None
    pings: bool | None = None
    try:
        with socket.socket(_family(ip), socket.SOCK_STREAM) as knocking:
            knocking.settimeout(seconds)
            knocking.connect((ip, port))
            outcome = _greet(knocking, max(0.1, seconds - (time.monotonic() - started)))
    except TimeoutError as error:
        outcome, number = Outcome.NO_ANSWER, error.errno
    except OSError as error:
        number = error.errno
        outcome = OUTCOMES.get(number or 0, Outcome.FAILED)
        if number == errno.EHOSTUNREACH and source_towards(ip) is None:
            outcome = Outcome.NO_ROUTE  # the routing table of this machine says so itself
        elif number == errno.EHOSTUNREACH:
            outcome = Outcome.PROHIBITED if time.monotonic() - started < PROMPT_SECONDS else Outcome.NO_HOST
    took = round(time.monotonic() - started, 3)
    if outcome in (Outcome.NO_ANSWER, Outcome.PROHIBITED) and _nobody_has(root, ip):
        outcome = Outcome.NO_HOST
    elif outcome is Outcome.NO_ANSWER:
        pings = answers_ping(ip)
    return Attempt(ip, outcome, number, took, pings)


def _greet(connection: socket.socket, seconds: float) -> Outcome:
    """A TCPStore sends the nonce of a PING back; anything else is somebody else."""
    nonce = os.urandom(4)
    connection.settimeout(seconds)
    try:
        connection.sendall(VALIDATE + b"\x0d" + nonce)
        heard = b""
        while len(heard) < len(nonce):
            piece = connection.recv(len(nonce) - len(heard))
            if not piece:
                return Outcome.STRANGER
            heard += piece
    except TimeoutError:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        return Outcome.NO_ANSWER if sent_in_vain(info) else Outcome.SILENT  # the query itself was lost: it is the way
    except OSError:
        return Outcome.STRANGER
    return Outcome.STORE if heard == nonce else Outcome.STRANGER


def _nobody_has(root: Root, ip: str) -> bool:
    """ARP asked for the address and nobody answered (an incomplete entry of /proc/net/arp)."""
    lines = (root.line("/proc/net/arp") or "").splitlines()[1:]
    entries = [line.split() for line in lines if line.split()[:1] == [ip]]
    return any(len(words) > 2 and words[2] == "0x0" for words in entries)


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET
