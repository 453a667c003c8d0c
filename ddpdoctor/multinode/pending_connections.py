"""Accepted connections that have not sent their first line yet: they cost almost nothing, even in large numbers."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.channel import READ_BYTES
from ddpdoctor.network.connect import OUT_OF_FILES, OUT_OF_MEMORY

__all__ = ["HELLO_SECONDS", "MOST_SILENT", "QUERY_BYTES", "STORE_QUERY", "PendingConnections"]

HELLO_SECONDS = 5.0
"""How long a client may take to send its first message."""
MOST_SILENT = 8192
"""Above this number, the oldest silent connection is closed."""
MOST_BYTES = 8 << 20
"""Of incomplete first lines of all connections together. Above it, the oldest one is closed."""
PIECE_BYTES = 16 << 10
STORE_QUERY = b"\x00"
"""The first byte of torch's TCPStore queries, with which another ddpdoctor examines the port."""
QUERY_BYTES = 10
AT_ONCE = 256
"""How many connections are accepted before other events are handled."""
PAUSE_SECONDS = 0.2

Serve = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Serves a connection; the first argument is what it has sent so far, a complete line."""


@dataclass(frozen=True)
class _PendingConnection:
    made: socket.socket
    address: tuple[Any, ...]
    serve: Serve
    since: float
    sent: bytearray = field(default_factory=bytearray)


@dataclass
class PendingConnections:
    """Listens on any number of ports. A connection is passed to its port's `serve` as soon as its first line, or a query of a
    TCPStore client, is complete. For one whose first line never is, or is no JSON object, `on_stranger` gets the address.
    """

    limit: int
    """The longest first line, in bytes."""
    on_stranger: Callable[[tuple[Any, ...]], None]
    most_silent: int = MOST_SILENT
    most_bytes: int = MOST_BYTES
    _held: int = 0
    """Bytes of all incomplete first lines."""
    _ports: dict[str, socket.socket] = field(default_factory=dict)
    _silent: dict[int, _PendingConnection] = field(default_factory=dict)
    """By file descriptor, oldest first."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _accepted: set[socket.socket] = field(default_factory=set)
    """Those whose task has not started yet: a task that is cancelled before its first step cannot close anything."""
    _sweep: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()  # far cheaper than one stream or one loop reader per connection
        self._loop.add_reader(self._epoll, self._look)

    def __contains__(self, name: str) -> bool:
        return name in self._ports

    def listen(self, name: str, listening: socket.socket, serve: Serve) -> None:
        """Accept connections on a listening, nonblocking socket."""
        self._ports[name] = listening
        self._loop.add_reader(listening, self._accept, name, listening, serve)

    def close_port(self, name: str) -> None:
        """Close a listening port; connections stay open."""
        listening = self._ports.pop(name, None)
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()

    def close_ports(self) -> None:
        """Close all listening ports; connections stay open."""
        for name in list(self._ports):
            self.close_port(name)

    async def close(self) -> None:
        """Close all ports and all connections."""
        self.close_ports()
        for number in list(self._silent):
            self._forget(number).close()
        self._loop.remove_reader(self._epoll)
        self._epoll.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._accepted:
            self._accepted.pop().close()

    def _accept(self, name: str, listening: socket.socket, serve: Serve) -> None:
        for _ in range(AT_ONCE):
            try:
                made, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (*OUT_OF_FILES, *OUT_OF_MEMORY) and not self._close_oldest():
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE_SECONDS, self._resume, name, listening, serve)
                    return
                continue  # the client has closed it again
            made.setblocking(False)
            self._silent[made.fileno()] = _PendingConnection(made, address, serve, time.monotonic())
            self._epoll.register(made, select.EPOLLIN)
            if len(self._silent) > self.most_silent:
                self._close_oldest()
            if self._sweep is None:
                self._sweep = self._loop.call_later(HELLO_SECONDS, self._close_late)

    def _resume(self, name: str, listening: socket.socket, serve: Serve) -> None:
        if self._ports.get(name) is listening:
            self.listen(name, listening, serve)

    def _look(self) -> None:
        """Handle connections that sent something or were closed."""
        for number, _ in self._epoll.poll(0):
            pending = self._silent.get(number)
            if pending is None:
                continue  # closed meanwhile, because all together held too much
            try:
                piece = pending.made.recv(PIECE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                piece = b""
            pending.sent.extend(piece)
            self._held += len(piece)
            if not piece or self._is_no_line(pending.sent):
                self._turn_away(number)
            elif _is_complete(pending.sent):
                made = self._forget(number)
                self._accepted.add(made)
                task = self._loop.create_task(self._serve(made, bytes(pending.sent), pending.serve))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif self._held > self.most_bytes:
                self._turn_away(next(number for number, each in self._silent.items() if each.sent))

    def _is_no_line(self, sent: bytearray) -> bool:
        """Whether this cannot be the first line of a node, nor a query to a TCPStore: a scanner, a browser."""
        is_known = sent.startswith((b"{", STORE_QUERY))
        return not is_known or (len(sent) > self.limit and b"\n" not in sent)

    async def _serve(self, made: socket.socket, sent: bytes, serve: Serve) -> None:
        self._accepted.discard(made)
        try:
            reader, writer = await asyncio.open_connection(sock=made, limit=READ_BYTES)
        except OSError:  # it was closed
            made.close()
            return
        except BaseException:  # cancelled: the socket would stay open
            made.close()
            raise
        await serve(sent, reader, writer)

    def _close_oldest(self) -> bool:
        number = next(iter(self._silent), None)
        if number is None:
            return False
        self._turn_away(number)
        return True

    def _turn_away(self, number: int) -> None:
        self.on_stranger(self._silent[number].address)
        self._forget(number).close()

    def _close_late(self) -> None:
        """Close connections that were silent for too long, and schedule the next check."""
        self._sweep = None
        while self._silent:
            left = next(iter(self._silent.values())).since + HELLO_SECONDS - time.monotonic()
            if left > 0:
                self._sweep = self._loop.call_later(left, self._close_late)
                return
            self._close_oldest()

    def _forget(self, number: int) -> socket.socket:
        self._epoll.unregister(number)
        pending = self._silent.pop(number)
        self._held -= len(pending.sent)
        return pending.made


def _is_complete(sent: bytearray) -> bool:
    return len(sent) >= QUERY_BYTES if sent.startswith(STORE_QUERY) else b"\n" in sent
