"""Asks NCCL's RAS on this host. Only when told to: the question itself has crashed jobs (NVIDIA/nccl issues 1669, 1762, 2346)."""

from __future__ import annotations

import socket
from collections.abc import Mapping

__all__ = ["ask"]

DEFAULT = "localhost:28028"
MAX_BYTES = 64 << 20
RAS_SECONDS = 5


def ask(environ: Mapping[str, str], seconds: float) -> tuple[str, str]:
    """The address that was asked, and the answer.

    Raises:
        OSError: nobody answers there, or not in time.
    """
    address = environ.get("NCCL_RAS_ADDR") or DEFAULT
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]") or "localhost", int(port)), seconds) as link:
        link.settimeout(seconds)
        link.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT {RAS_SECONDS}\nVERBOSE STATUS\n".encode())
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < MAX_BYTES and (piece := link.recv(1 << 16)):
            pieces.append(piece)
    text = b"".join(pieces).decode("utf-8", "replace")
    return address, "\n".join(
        line for line in text.splitlines() if line != "OK" and not line.startswith("SERVER PROTOCOL")
    )
