"""Whether a machine answers a ping, if this process may send one."""

from __future__ import annotations

import os
import socket
import struct
import time

__all__ = ["PING_SECONDS", "answers_ping"]

PING_SECONDS = 0.5


def answers_ping(ip: str) -> bool | None:
    """Whether the address answers an ICMP echo; None when this process may not send one."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    echo = 8 if family == socket.AF_INET else 128
    packet = struct.pack("!BBHHH", echo, 0, 0, os.getpid() & 0xFFFF, 1)
    packet = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.settimeout(PING_SECONDS)
                probe.connect((ip, 0))
                probe.send(packet)
                return _receives_echo(probe, family)
        except TimeoutError:
            return False
        except PermissionError:
            continue
        except OSError:
            return False
    return None


def _receives_echo(probe: socket.socket, family: int) -> bool:
    ends = time.monotonic() + PING_SECONDS
    while time.monotonic() < ends:
        received = probe.recv(256)
        skip = (received[0] & 15) * 4 if family == socket.AF_INET and received[:1] and received[0] >> 4 == 4 else 0
        if received[skip : skip + 1] == (b"\x00" if family == socket.AF_INET else b"\x81"):
            return True
    return False


def _checksum(packet: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    return ~(total + (total >> 16)) & 0xFFFF
