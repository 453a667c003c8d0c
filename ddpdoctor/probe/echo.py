"""A port of this host that sends back what it is sent: by it the other hosts see that data ports are open.

Only those that know the token, which stands in the job's store, are answered; a request is at most 64 KiB.
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
    """Answers in a daemon thread from its construction until `close`, on a port that the kernel chooses."""

    def __init__(self) -> None:
        self.token = os.urandom(TOKEN_BYTES // 2).hex()
        super().__init__("", 0)
        self._clients: dict[socket.socket, bytearray] = {}
        self._start()

    def _admit(self) -> None:
        try:
            link, _ = self.listener.accept()
        except OSError:
            return  # gone before we looked
        if len(self._clients) >= MOST_CLIENTS:
            link.close()
            return
        link.settimeout(1.0)
        self._clients[link] = bytearray()
        self._selector.register(link, selectors.EVENT_READ)

    def _answer(self, link: socket.socket, events: int) -> None:
        """Take in what came; send back a request that is whole, drop a client that does not know the token."""
        heard = self._clients[link]
        try:
            piece = link.recv(LARGEST)
            heard += piece
            if not piece or (len(heard) >= HEAD.size and not self._is_whole(link, heard)):
                raise ConnectionError
        except OSError:
            self._selector.unregister(link)
            del self._clients[link]
            link.close()

    def _is_whole(self, link: socket.socket, heard: bytearray) -> bool:
        """Answer once the request is whole; False for one that is none."""
        token, size = HEAD.unpack_from(heard)
        if token != self.token.encode() or size > LARGEST:
            return False
        if len(heard) >= HEAD.size + size:
            link.sendall(heard[HEAD.size : HEAD.size + size])
            del heard[: HEAD.size + size]
        return True


def echoes(link: socket.socket, token: str, size: int, seconds: float) -> bool:
    """Whether `size` bytes come back whole within `seconds` without a byte.

    Raises:
        OSError: the connection broke.
    """
    payload = os.urandom(size)
    link.settimeout(seconds)
    try:
        link.sendall(HEAD.pack(token.encode(), size) + payload)
        heard = b""
        while len(heard) < size:
            piece = link.recv(size - len(heard))
            if not piece:
                raise ConnectionResetError
            heard += piece
    except TimeoutError:
        return False
    return heard == payload
