"""Queries NCCL's RAS on this host. Only on request, because the query has crashed jobs (NVIDIA/nccl issues 1669, 1762, 2346)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence

from ddpdoctor.network.connect import connect
from ddpdoctor.network.resolve import look_up

__all__ = ["ask"]

DEFAULT = "localhost:28028"
MAX_BYTES = 64 << 20
RAS_SECONDS = 5


def ask(environ: Mapping[str, str], seconds: float) -> tuple[str, str]:
    """The address of the RAS service, and its report.

    Raises:
        OSError: no process answers there, or not in time.
    """
    address = environ.get("NCCL_RAS_ADDR") or DEFAULT
    host, _, port = address.rpartition(":")
    lookup = look_up(host.strip("[]") or "localhost", seconds)
    if lookup.error is not None:
        raise OSError(0, lookup.error)
    with _connect(lookup.addresses, int(port), seconds) as link:
        link.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT {RAS_SECONDS}\nVERBOSE STATUS\n".encode())
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < MAX_BYTES and (piece := link.recv(1 << 16)):
            pieces.append(piece)
    text = b"".join(pieces).decode("utf-8", "replace")
    return address, "\n".join(
        line for line in text.splitlines() if line != "OK" and not line.startswith("SERVER PROTOCOL")
    )


def _connect(addresses: Sequence[str], port: int, seconds: float) -> socket.socket:
    """A connection to the first of these addresses that accepts one.

    Raises:
        OSError: none does.
    """
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return connect(address, port, seconds)
    return connect(last, port, seconds)
