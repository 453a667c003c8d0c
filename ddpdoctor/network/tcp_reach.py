"""The reachability check: whether a TCPStore answers at an address and port, and the outcome if none does.

The only bytes ever sent are the two harmless queries of torch's TCPStore, VALIDATE and PING.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from ddpdoctor.facts.reachability import Attempt, ConnectOutcome
from ddpdoctor.network.connect import connect, outcome_of, refined
from ddpdoctor.network.ping import PING_SECONDS, answers_ping
from ddpdoctor.network.tcp_info import lost_packets
from ddpdoctor.network.tcpstore.client import StoreError, handshake
from ddpdoctor.system.machine import Root
from ddpdoctor.system.timeouts import finish_all

__all__ = ["check_reachability"]

MOST_ADDRESSES = 8


def check_reachability(root: Root, addresses: Sequence[str], port: int, seconds: float) -> tuple[Attempt, ...]:
    """One attempt per address, all in parallel, each within `seconds` and two pings."""
    attempts: dict[str, Attempt] = {}

    def attempt(address: str) -> None:
        attempts[address] = _attempt(root, address, port, seconds)

    tried = addresses[:MOST_ADDRESSES]
    finish_all((functools.partial(attempt, address) for address in tried), lambda: seconds + 2 * PING_SECONDS)
    return tuple(attempts[address] for address in tried if address in attempts)


def _attempt(root: Root, address: str, port: int, seconds: float) -> Attempt:
    started = time.monotonic()
    number: int | None = None
    try:
        with connect(address, port, seconds) as link:
            outcome = ConnectOutcome.STORE
            try:
                handshake(link, "", max(0.1, seconds - (time.monotonic() - started)))
            except StoreError as error:
                is_lost = error.outcome is ConnectOutcome.SILENT and lost_packets(link)
                outcome = ConnectOutcome.NO_ANSWER if is_lost else error.outcome
    except OSError as error:
        number = error.errno
        outcome = refined(outcome_of(error), address, time.monotonic() - started)
    took = round(time.monotonic() - started, 3)
    pings: bool | None = None
    if outcome in (ConnectOutcome.NO_ANSWER, ConnectOutcome.PROHIBITED) and _is_unknown_to_arp(root, address):
        outcome = ConnectOutcome.NO_HOST
    elif outcome is ConnectOutcome.NO_ANSWER:
        pings = answers_ping(address)
    return Attempt(address, outcome, number, took, pings)


def _is_unknown_to_arp(root: Root, address: str) -> bool:
    """Whether no host answered ARP for the address (an incomplete entry of /proc/net/arp)."""
    lines = (root.line("/proc/net/arp") or "").splitlines()[1:]
    entries = [line.split() for line in lines if line.split()[:1] == [address]]
    return any(len(fields) > 2 and fields[2] == "0x0" for fields in entries)
