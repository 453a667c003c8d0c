"""Accepted connections that have not sent anything yet: they cost almost nothing, even in large numbers."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.network.connect import OUT_OF_FILES, OUT_OF_MEMORY

__all__ = ["HELLO_SECONDS", "MOST_SILENT", "PendingConnections"]

HELLO_SECONDS = 5.0
"""How long a client may take to send its first message."""
MOST_SILENT = 8192
"""Above this number, the oldest silent connection is closed."""
AT_ONCE = 256
"""How many connections are accepted before other events are handled."""
PAUSE_SECONDS = 0.2

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class _PendingConnection:
    made: socket.socket
    address: tuple[Any, ...]
    serve: Serve
    since: float


@dataclass
class PendingConnections:
    """Listens on any number of ports. A connection is passed to its port's `serve` as soon as it sends something; for one
    that never does, or closes first, `on_nothing_sent` gets the address.
    """

    limit: int
    """The longest line that is read at once, in bytes."""
    on_nothing_sent: Callable[[tuple[Any, ...]], None]
    most_silent: int = MOST_SILENT
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

    async def close(self) -> None:
        """Close all ports and all connections."""
        for name in list(self._ports):
            self.close_port(name)
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
            silent = self._silent[number]
            made = self._forget(number)
            if _has_gone(made):
                self.on_nothing_sent(silent.address)
                made.close()
                continue
            self._accepted.add(made)
            task = self._loop.create_task(self._serve(made, silent.serve))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, made: socket.socket, serve: Serve) -> None:
        self._accepted.discard(made)
        try:
            reader, writer = await asyncio.open_connection(sock=made, limit=self.limit)
        except OSError:  # it was closed
            made.close()
            return
        except BaseException:  # cancelled: the socket would stay open
            made.close()
            raise
        await serve(reader, writer)

    def _close_oldest(self) -> bool:
        number = next(iter(self._silent), None)
        if number is None:
            return False
        self.on_nothing_sent(self._silent[number].address)
        self._forget(number).close()
        return True

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
        return self._silent.pop(number).made


def _has_gone(made: socket.socket) -> bool:
    try:
        return not made.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
