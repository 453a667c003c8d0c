"""A port of this host that echoes data: with it, the other hosts check that data ports are open.

Only clients with the token from the job's store get an answer; a request is at most 64 KiB.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct

from ddpdoctor.network.serving import Serving

__all__ = ["TOKEN_BYTES", "EchoServer", "echoes"]

TOKEN_BYTES = 16
HEAD = struct.Struct(f"={TOKEN_BYTES}sI")
LARGEST = 1 << 16
MOST_CLIENTS = 512


class EchoServer(Serving):
    """Serves in a daemon thread as soon as it is created until `close`, on a port chosen by the kernel."""

    def __init__(self) -> None:
        self.token = os.urandom(TOKEN_BYTES // 2).hex()
        super().__init__("", 0)
        self._clients: dict[socket.socket, bytearray] = {}
        self._start()

    def _admit(self) -> None:
        try:
            link, _ = self.listener.accept()
        except OSError:
            return  # closed in the meantime
        if len(self._clients) >= MOST_CLIENTS:
            link.close()
            return
        link.settimeout(1.0)
        self._clients[link] = bytearray()
        self._selector.register(link, selectors.EVENT_READ)

    def _answer(self, link: socket.socket, events: int) -> None:
        """Read data; echo a complete request, drop a client without the token."""
        received = self._clients[link]
        try:
            piece = link.recv(LARGEST)
            received += piece
            if not piece or (len(received) >= HEAD.size and not self._is_whole(link, received)):
                raise ConnectionError
        except OSError:
            self._selector.unregister(link)
            del self._clients[link]
            link.close()

    def _is_whole(self, link: socket.socket, received: bytearray) -> bool:
        """Answer once the request is complete; False for an invalid one."""
        token, size = HEAD.unpack_from(received)
        if token != self.token.encode() or size > LARGEST:
            return False
        if len(received) >= HEAD.size + size:
            link.sendall(received[HEAD.size : HEAD.size + size])
            del received[: HEAD.size + size]
        return True


def echoes(link: socket.socket, token: str, size: int, seconds: float) -> bool:
    """Whether `size` bytes come back unchanged, with at most `seconds` between bytes.

    Raises:
        OSError: the connection was lost.
    """
    payload = os.urandom(size)
    link.settimeout(seconds)
    try:
        link.sendall(HEAD.pack(token.encode(), size) + payload)
        received = b""
        while len(received) < size:
            piece = link.recv(size - len(received))
            if not piece:
                raise ConnectionResetError
            received += piece
    except TimeoutError:
        return False
    return received == payload
