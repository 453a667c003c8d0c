"""What the kernel's struct tcp_info says of a connection on which nothing comes back."""

from __future__ import annotations

import socket
import sys

import pytest

from ddpdoctor.network.tcp_info import INFO_BYTES, count_lost


def _info(retransmits: int, unacknowledged: int) -> bytes:
    return bytes([1, 4, retransmits, 0]) + bytes(20) + unacknowledged.to_bytes(4, sys.byteorder)


@pytest.mark.parametrize(
    ("info", "lost"),
    [(_info(3, 7), 7), (_info(2, 1), 1), (_info(1, 7), 0), (_info(3, 0), 0), (b"", 0), (_info(3, 7)[:-1], 0)],
)
def test_packets_are_lost_that_were_sent_again_and_never_acknowledged(info: bytes, lost: int) -> None:
    assert count_lost(info) == lost


def test_the_silence_of_a_process_that_does_not_read_is_no_loss() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as link:
        link.sendall(b"x" * 32768)
        info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        assert len(info) == INFO_BYTES
        assert count_lost(info) == 0
