"""A server in its own thread, on one selector: the base of the TCPStore server and of the echo server."""

from __future__ import annotations

import selectors
import socket
import threading

from ddpdoctor.network.connect import listen, listen_as_master
from ddpdoctor.system.timeouts import NoThreadError, start_thread

__all__ = ["Serving"]


class Serving:
    """Listens as soon as it is created and serves in a daemon thread from `_start` until `close`.

    `host` "" is every address, port 0 is chosen by the kernel. With `as_master`, `host` is the master of a job, which may
    be a name or an address that this machine does not have: see `listen_as_master`.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(self, host: str, port: int, *, as_master: bool = False) -> None:
        self.listener = listen_as_master(port, host) if as_master else listen(port, host)
        self.port = int(self.listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop serving and close every connection."""
        self._waker.close()
        if self._thread is not None:
            self._thread.join(2.0)
        else:
            self._end()

    def _start(self) -> None:
        try:
            self._thread = start_thread(self._serve, "ddpdoctor serving")
        except NoThreadError:
            self.close()
            raise

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._woken:
                    self._end()
                    return
                if key.fileobj is self.listener:
                    self._admit()
                elif isinstance(key.fileobj, socket.socket):
                    self._answer(key.fileobj, events)

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.listener.close()
        self._selector.close()

    def _admit(self) -> None:
        """Accept a connection."""
        raise NotImplementedError

    def _answer(self, link: socket.socket, events: int) -> None:
        """Serve a client whose connection is readable or writable."""
        raise NotImplementedError
