"""Whether the packets of a silent TCP connection are lost on the network, from the kernel's TCP_INFO."""

from __future__ import annotations

import socket
import sys

__all__ = ["INFO_BYTES", "count_lost", "lost_packets"]

RETRANSMITS, UNACKNOWLEDGED, INFO_BYTES = 2, 24, 28
"""Offsets in the kernel's struct tcp_info: tcpi_retransmits, one byte; tcpi_unacked, four bytes; and the size that is read."""
MOST_RETRANSMITS = 2
"""How often in a row a packet may be lost on a working link."""


def lost_packets(link: socket.socket) -> int:
    """How many packets of a connection were retransmitted and never acknowledged; 0 if the network is not the problem.

    If a process is suspended or busy, the kernel of its machine still acknowledges packets.

    Raises:
        OSError: the socket was closed.
    """
    return count_lost(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))


def count_lost(info: bytes) -> int:
    """The same from the bytes of getsockopt(TCP_INFO)."""
    if len(info) < INFO_BYTES or info[RETRANSMITS] < MOST_RETRANSMITS:
        return 0
    return int.from_bytes(info[UNACKNOWLEDGED:INFO_BYTES], sys.byteorder)
