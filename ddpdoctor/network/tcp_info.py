"""What the kernel says of a TCP connection on which nothing comes back: whether its packets are lost on the way."""

from __future__ import annotations

import sys

__all__ = ["INFO_BYTES", "sent_in_vain"]

RETRANSMITS, UNACKNOWLEDGED, INFO_BYTES = 2, 24, 28
"""Offsets in the kernel's struct tcp_info: tcpi_retransmits, a byte; tcpi_unacked, four bytes; what is read of it."""
MOST_RETRANSMITS = 2
"""So often in a row a packet may be lost on a link that works."""


def sent_in_vain(info: bytes) -> int:
    """How many packets were sent again and again and never acknowledged; 0 where it is not the link that is silent.

    The kernel of a machine whose process is stopped or busy acknowledges what comes. `info` is what getsockopt(TCP_INFO)
    gave, of which INFO_BYTES are read.
    """
    if len(info) < INFO_BYTES or info[RETRANSMITS] < MOST_RETRANSMITS:
        return 0
    return int.from_bytes(info[UNACKNOWLEDGED:INFO_BYTES], sys.byteorder)
