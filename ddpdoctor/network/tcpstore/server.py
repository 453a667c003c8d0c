"""A small TCPStore server without torch: rank 0's supervisor hosts it for plain env:// ranks, the local probe for its ranks.

It serves ddpdoctor's client and torch's (2.2 to 2.13), so that workers create their process group with it.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque

from ddpdoctor.network.connect import OUT_OF_FILES
from ddpdoctor.network.serving import Serving
from ddpdoctor.network.tcpstore.wire import MAGIC, NONCE, NUMBER, SIGNED, StoreOp, pack

__all__ = ["Server"]

LONGEST = 1 << 30
"""A larger length is not a TCPStore request: the connection is closed."""


class _ProtocolError(Exception):
    """The peer violated the protocol."""


class _Client:
    """One connection: bytes received, bytes to send, the keys it waits for."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.received = b""
        self.unsent = bytearray()
        self.waiting: set[bytes] = set()
        self.popping: bytes | None = None
        self.is_full = False
        self.validated = False


class Server(Serving):
    """Listens as soon as it is created; serves in a daemon thread until `close`. The key `mark` is set from the start.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(self, host: str, port: int, mark: str = "hosted", *, as_master: bool = False) -> None:
        super().__init__(host, port, as_master=as_master)
        self._values: dict[bytes, bytes | bytearray] = {mark.encode(): b"ddpdoctor"}
        self._waiting: dict[bytes, set[_Client]] = {}
        self._serving: _Client | None = None
        self._queues: dict[bytes, deque[bytes]] = {}
        self._peers: dict[int, _Client] = {}
        self.is_out_of_files = False
        self._start()

    def _admit(self) -> None:
        try:
            link, _ = self.listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_FILES:  # it would use every descriptor that is freed for the report
                self.is_out_of_files = True
                self._selector.unregister(self.listener)
            return  # otherwise the peer has closed already: it will retry
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[link.fileno()] = _Client(link)
        self._selector.register(link, selectors.EVENT_READ)

    def _drop(self, peer: _Client) -> None:
        for key in peer.waiting:
            self._waiting.get(key, set()).discard(peer)
        self._selector.unregister(peer.link)
        del self._peers[peer.link.fileno()]
        peer.link.close()

    def _answer(self, link: socket.socket, events: int) -> None:
        peer = self._peers.get(link.fileno())
        if peer is None:
            return  # it was dropped in the meantime
        try:
            if events & selectors.EVENT_READ:
                chunk = peer.link.recv(1 << 16)
                if not chunk:
                    self._drop(peer)
                    return
                self._requests(peer, peer.received + chunk)
            self._flush(peer)
        except BlockingIOError:
            return  # nothing to read after all
        except (OSError, _ProtocolError):
            self._drop(peer)

    def _requests(self, peer: _Client, received: bytes) -> None:
        """Answer every complete request; keep the rest for later."""
        reader = _RequestReader(received)
        answered = 0
        self._serving = peer
        try:
            while answered < len(received):
                op = reader.take(1)[0]
                handler = _HANDLERS.get(op)
                if handler is None or not (peer.validated or op == StoreOp.VALIDATE):
                    raise _ProtocolError
                handler(self, peer, reader)
                answered = reader.at
        except IndexError:
            pass  # the last request is incomplete
        finally:
            self._serving = None
        peer.received = received[answered:]

    def _reply(self, peer: _Client, answer: bytes) -> None:
        peer.unsent += answer
        if peer is not self._serving and self._peers.get(peer.link.fileno()) is peer:
            self._flush(peer)  # it waited for a key; a peer that is being served is flushed after all its requests

    def _flush(self, peer: _Client) -> None:
        try:
            if peer.unsent:
                del peer.unsent[: peer.link.send(peer.unsent)]
        except BlockingIOError:
            pass  # the peer's buffer is full: EVENT_WRITE reports when it is not
        except OSError:
            peer.unsent.clear()  # the peer is gone: the next read fails and drops it
        if peer.is_full != bool(peer.unsent):
            peer.is_full = bool(peer.unsent)
            self._selector.modify(peer.link, selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.is_full else 0))

    def _store(self, key: bytes, value: bytes | bytearray) -> None:
        self._values[key] = value
        for peer in self._waiting.pop(key, ()):
            if key in peer.waiting:
                peer.waiting.discard(key)
                if not peer.waiting:
                    self._reply(peer, b"\0")

    def _validate(self, peer: _Client, reader: _RequestReader) -> None:
        if reader.take(len(MAGIC)) != MAGIC:
            raise _ProtocolError
        peer.validated = True

    def _ping(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, reader.take(NONCE.size))

    def _set(self, peer: _Client, reader: _RequestReader) -> None:
        key, value = reader.text(), reader.text()
        self._store(key, value)

    def _compare_set(self, peer: _Client, reader: _RequestReader) -> None:
        key, expected, desired = reader.text(), reader.text(), reader.text()
        current = self._values.get(key)
        if (current is None and not expected) or current == expected:
            self._store(key, desired)
        self._reply(peer, pack(self._values.get(key, expected)))

    def _get(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, pack(self._known(reader.text())))

    def _add(self, peer: _Client, reader: _RequestReader) -> None:
        key, amount = reader.text(), reader.signed()
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError:
            raise _ProtocolError from None
        self._store(key, str(total).encode())
        self._reply(peer, SIGNED.pack(total))

    def _check(self, peer: _Client, reader: _RequestReader) -> None:
        keys = reader.texts()
        self._reply(peer, b"\0" if all(key in self._values for key in keys) else b"\1")

    def _wait(self, peer: _Client, reader: _RequestReader) -> None:
        peer.waiting = {key for key in reader.texts() if key not in self._values}
        for key in peer.waiting:
            self._waiting.setdefault(key, set()).add(peer)
        if not peer.waiting:
            self._reply(peer, b"\0")

    def _cancel(self, peer: _Client, reader: _RequestReader) -> None:
        peer.waiting = set()
        peer.popping = None
        self._reply(peer, b"\1")

    def _num_keys(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, SIGNED.pack(len(self._values)))

    def _delete(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, SIGNED.pack(0 if self._values.pop(reader.text(), None) is None else 1))

    def _append(self, peer: _Client, reader: _RequestReader) -> None:
        key, value = reader.text(), reader.text()
        log = self._values.get(key, b"")
        if not isinstance(log, bytearray):
            log = bytearray(log)
        log += value
        self._store(key, log)

    def _multi_get(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, pack(*(self._known(key) for key in reader.texts())))

    def _multi_set(self, peer: _Client, reader: _RequestReader) -> None:
        texts = [(reader.text(), reader.text()) for _ in range(reader.number())]
        for key, value in texts:
            self._store(key, value)

    def _list(self, peer: _Client, reader: _RequestReader) -> None:
        self._reply(peer, NUMBER.pack(len(self._values)) + pack(*self._values))

    def _known(self, key: bytes) -> bytes | bytearray:
        if key not in self._values:
            raise _ProtocolError  # torch's server also closes the connection: clients wait for a key before they get it
        return self._values[key]


class _RequestReader:
    """Takes the parts of one request; IndexError if it is incomplete."""

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.at = 0

    def take(self, size: int) -> bytes:
        begin, end = self.at, self.at + size
        if len(self.buffer) < end:
            raise IndexError
        self.at = end
        return self.buffer[begin:end]

    def number(self) -> int:
        if len(self.buffer) < self.at + NUMBER.size:
            raise IndexError
        value: int = NUMBER.unpack_from(self.buffer, self.at)[0]
        if value > LONGEST:
            raise _ProtocolError
        self.at += NUMBER.size
        return value

    def signed(self) -> int:
        return int(SIGNED.unpack(self.take(SIGNED.size))[0])

    def text(self) -> bytes:
        return self.take(self.number())

    def texts(self) -> list[bytes]:
        return [self.text() for _ in range(self.number())]


_HANDLERS = {
    StoreOp.VALIDATE: Server._validate,
    StoreOp.SET: Server._set,
    StoreOp.COMPARE_SET: Server._compare_set,
    StoreOp.GET: Server._get,
    StoreOp.ADD: Server._add,
    StoreOp.CHECK: Server._check,
    StoreOp.WAIT: Server._wait,
    StoreOp.NUM_KEYS: Server._num_keys,
    StoreOp.DELETE: Server._delete,
    StoreOp.APPEND: Server._append,
    StoreOp.MULTI_GET: Server._multi_get,
    StoreOp.MULTI_SET: Server._multi_set,
    StoreOp.CANCEL: Server._cancel,
    StoreOp.PING: Server._ping,
    StoreOp.LIST: Server._list,
}
