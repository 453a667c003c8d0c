"""What the kernel says of a TCP connection on which nothing comes back: whether its packets are lost on the way."""

from __future__ import annotations

import socket
import sys

__all__ = ["INFO_BYTES", "count_lost", "lost_packets"]

RETRANSMITS, UNACKNOWLEDGED, INFO_BYTES = 2, 24, 28
"""Offsets in the kernel's struct tcp_info: tcpi_retransmits, a byte; tcpi_unacked, four bytes; what is read of it."""
MOST_RETRANSMITS = 2
"""So often in a row a packet may be lost on a link that works."""


def lost_packets(link: socket.socket) -> int:
    """How many packets of a connection were sent repeatedly and never acknowledged; 0 where the link is not what is silent.

    The kernel of a machine whose process is stopped or busy acknowledges what comes.

    Raises:
        OSError: the socket was closed.
    """
    return count_lost(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))


def count_lost(info: bytes) -> int:
    """The same of what getsockopt(TCP_INFO) gave."""
    if len(info) < INFO_BYTES or info[RETRANSMITS] < MOST_RETRANSMITS:
        return 0
    return int.from_bytes(info[UNACKNOWLEDGED:INFO_BYTES], sys.byteorder)
