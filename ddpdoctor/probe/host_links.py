"""Link checks between hosts by the supervisors, before torch connects: open ports, large packets, Gloo's own address."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network.connect import OUT_OF_FILES, connect, outcome_of
from ddpdoctor.network.tcp_info import lost_packets
from ddpdoctor.probe.echo import echoes
from ddpdoctor.probe.hosts import HostCard
from ddpdoctor.system.timeouts import start_thread

__all__ = ["LinkChecks", "peers_of"]

MOST_PEERS = 64
"""Up to this many hosts, every pair is tested; above, each host tests those at distances 1, 2, 4, …"""
CONNECT_SECONDS = 2.3
"""Long enough for a retransmission of a lost SYN."""
ANSWER_SECONDS = 1.5
SMALL, LARGE = 64, 32 << 10
SMALL_SEGMENT = 500
"""Segments that pass on any working TCP path."""

_SHOWN_AS = {
    ConnectOutcome.REFUSED: "refused",
    ConnectOutcome.RESET: "reset",
    ConnectOutcome.NO_ANSWER: f"dropped (no answer within {CONNECT_SECONDS:.1f} s)",
    ConnectOutcome.NO_HOST: "unreachable",
    ConnectOutcome.NO_ROUTE: "not routed",
    ConnectOutcome.PROHIBITED: "blocked by a firewall",
}


class LinkFault(NamedTuple):
    """The problem with the link to a peer, and how it was detected; `outcome` if there was no connection."""

    kind: Kind
    seen: str
    outcome: ConnectOutcome | None = None


def peers_of(index: int, count: int) -> list[int]:
    """The hosts that one host tests."""
    if count <= MOST_PEERS:
        return [other for other in range(count) if other != index]
    steps = (1 << power for power in range(count.bit_length()))
    return sorted({(index + step) % count for step in steps if step < count})


class LinkChecks:
    """One host's link checks, all in parallel in threads; the results are in `found` when `is_done`."""

    def __init__(self, own: HostCard, peers: Sequence[HostCard], store_address: str) -> None:
        self.own = own
        self.found: list[Observation] = []
        self._threads = [start_thread(functools.partial(self._try, peer, store_address)) for peer in peers]

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _try(self, peer: HostCard, store_address: str) -> None:
        """Connect to the address that the peer's packets come from, then to the one that Gloo would advertise."""
        address = peer.address or store_address
        fault = check_link(address, peer)
        if fault is None and peer.gloo not in ("", address) and not is_loopback(peer.gloo):
            address = peer.gloo
            fault = check_link(address, peer)
            if fault is not None and fault.kind is Kind.LINK_BLOCKED:
                fault = fault._replace(kind=Kind.GLOO_UNREACHABLE)
        if fault is not None:
            self.found.append(self._observe(fault, peer, address))

    def _observe(self, fault: LinkFault, peer: HostCard, address: str) -> Observation:
        own, seen = self.own, fault.seen
        messages = {
            Kind.LINK_BLOCKED: f"data connections from {own.host} to {peer.host} ({address}) are {seen}",
            Kind.LINK_BLACK_HOLE: f"large packets are lost between {own.host} and {peer.host} ({address}): {seen}",
            Kind.GLOO_UNREACHABLE: (
                f"Gloo on {peer.host} publishes {address}, which {own.host} cannot reach ({seen});"
                f" {peer.address or 'the store there'} answers"
            ),
        }
        return Observation(
            fault.kind,
            messages[fault.kind],
            seen_by=own.rank,
            host=peer.host,
            peer=own.host,
            node_rank=peer.node_rank,
            phase="mesh",
            value=f"{address}:{peer.port}",
            outcome=fault.outcome,
        )


def check_link(address: str, peer: HostCard) -> LinkFault | None:
    """The problem with the link to a peer, None if there is none.

    A peer that accepts and stays silent is suspended or busy, which is not a link problem.
    """
    try:
        with connect(address, peer.port, CONNECT_SECONDS) as link:
            if not echoes(link, peer.token, SMALL, ANSWER_SECONDS):
                return _lossy(link)
            if echoes(link, peer.token, LARGE, ANSWER_SECONDS):
                return None
        with connect(address, peer.port, CONNECT_SECONDS, SMALL_SEGMENT) as link:
            if echoes(link, peer.token, LARGE, ANSWER_SECONDS):
                seen = f"{LARGE >> 10} KiB arrive only in segments of {SMALL_SEGMENT} bytes"
                return LinkFault(Kind.LINK_BLACK_HOLE, seen)
            return _lossy(link)
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            return None  # the problem is in this process, not on the link
        outcome = outcome_of(error)
        return LinkFault(Kind.LINK_BLOCKED, _SHOWN_AS.get(outcome) or os.strerror(error.errno or 0), outcome)


def _lossy(link: socket.socket) -> LinkFault | None:
    """Whether a silent connection loses packets; otherwise its other end is suspended or busy."""
    lost = lost_packets(link)
    seen = f"established, but {lost} packets were lost"
    return LinkFault(Kind.LINK_BLOCKED, seen, ConnectOutcome.NO_ANSWER) if lost else None
