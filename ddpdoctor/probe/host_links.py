"""Data between hosts, tried by the supervisors before torch tries it: open ports, large packets, Gloo's own address."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.network.file_limits import OUT_OF_FILES
from ddpdoctor.network.tcp_info import INFO_BYTES, sent_in_vain
from ddpdoctor.probe.echo import ask
from ddpdoctor.probe.hosts import Card

__all__ = ["Mesh", "peers_of"]

MOST_PEERS = 64
"""Up to so many hosts every pair is tried; above, each host tries those 1, 2, 4, … places further on."""
CONNECT_SECONDS = 2.3
"""Long enough for the kernel to send a lost first packet once more."""
ANSWER_SECONDS = 1.5
SMALL, LARGE = 64, 32 << 10
SMALL_SEGMENT = 500
"""Segments that pass wherever TCP passes at all."""

_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "without a route",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
}


def peers_of(index: int, count: int) -> list[int]:
    """The hosts that one host tries."""
    if count <= MOST_PEERS:
        return [other for other in range(count) if other != index]
    steps = (1 << power for power in range(count.bit_length()))
    return sorted({(index + step) % count for step in steps if step < count})


class Mesh:
    """One host's tries at its peers, all at once in threads; `found` when `is_done`."""

    def __init__(self, own: Card, peers: Sequence[Card], store_address: str) -> None:
        self.own = own
        self.found: list[Observation] = []
        self._threads = [threading.Thread(target=self._try, args=(peer, store_address), daemon=True) for peer in peers]
        for thread in self._threads:
            thread.start()

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _try(self, peer: Card, store_address: str) -> None:
        """Reach the peer where its packets come from, then where Gloo would have it reached."""
        address = peer.address or store_address
        kind, words = reach(address, peer)
        if kind is None and peer.gloo not in ("", address) and not is_loopback(peer.gloo):
            address = peer.gloo
            kind, words = reach(address, peer)
            kind = Kind.GLOO_UNREACHABLE if kind is Kind.LINK_BLOCKED else kind
        if kind is not None:
            self.found.append(self._observe(kind, peer, address, words))

    def _observe(self, kind: Kind, peer: Card, address: str, words: str) -> Observation:
        own = self.own
        messages = {
            Kind.LINK_BLOCKED: f"data connections from {own.host} to {peer.host} ({address}) are {words}",
            Kind.LINK_BLACK_HOLE: f"large packets vanish between {own.host} and {peer.host} ({address}): {words}",
            Kind.GLOO_UNREACHABLE: (
                f"Gloo on {peer.host} publishes {address}, which {own.host} cannot reach ({words}),"
                f" although {peer.address or 'the store there'} answers"
            ),
        }
        return Observation(
            kind,
            messages[kind],
            seen_by=own.rank,
            host=peer.host,
            peer=own.host,
            node_rank=peer.node_rank,
            phase="mesh",
            value=f"{address}:{peer.port}",
        )


def reach(address: str, peer: Card) -> tuple[Kind | None, str]:
    """What is wrong with the way to a peer, None when nothing is; and how it showed.

    A peer that accepts and stays silent is stopped or busy: that is no matter of the link.
    """
    try:
        with socket.create_connection((address, peer.port), CONNECT_SECONDS) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not ask(link, peer.token, SMALL, ANSWER_SECONDS):
                return _lossy(link)
            if ask(link, peer.token, LARGE, ANSWER_SECONDS):
                return None, ""
        with _with_small_segments(address, peer.port) as link:
            if ask(link, peer.token, LARGE, ANSWER_SECONDS):
                return Kind.LINK_BLACK_HOLE, f"{LARGE >> 10} KiB come back only in segments of {SMALL_SEGMENT} bytes"
            return _lossy(link)
    except TimeoutError:
        return Kind.LINK_BLOCKED, f"dropped: no answer within {CONNECT_SECONDS:.1f} s"
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            return None, ""  # that is no matter of the link
        return Kind.LINK_BLOCKED, _WORDS.get(error.errno or 0, str(error.strerror))


def _lossy(link: socket.socket) -> tuple[Kind | None, str]:
    """Whether a connection on which nothing came back loses its packets; else its other end is stopped or busy."""
    lost = sent_in_vain(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))
    return (Kind.LINK_BLOCKED, f"made and then lossy: {lost} packets never arrived") if lost else (None, "")


def _with_small_segments(address: str, port: int) -> socket.socket:
    link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)
    link.settimeout(CONNECT_SECONDS)
    link.connect((address, port))
    return link
