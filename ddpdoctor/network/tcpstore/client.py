"""A client of torch's TCPStore in pure Python, without torch. Failures are distinguished by their outcome."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable

from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network import connect as tcp
from ddpdoctor.network.ping import answers_ping
from ddpdoctor.network.resolve import look_up
from ddpdoctor.network.tcpstore.wire import MAGIC, NONCE, NUMBER, READY, SIGNED, StoreOp, pack

__all__ = ["PATIENT_SECONDS", "Store", "StoreError", "StoreLost", "connect", "handshake"]

PATIENT_SECONDS = 10.0
"""How long one answer may take if no problem is known: a machine may be busy, and torch's own server blocks while it
looks up the name of each client that connects."""
DOUBT_SECONDS = 0.3
"""How often `is_hopeless` is checked while waiting for an answer."""


class StoreError(Exception):
    """The store is unreachable, with the outcome and a text for the user.

    `pings`: the host answers a ping, so a firewall causes the NO_ANSWER.
    """

    def __init__(self, outcome: ConnectOutcome, seen: str, *, pings: bool = False) -> None:
        super().__init__(seen)
        self.outcome = outcome
        self.pings = pings


class StoreLost(Exception):
    """The connection to the store was lost (RESET), or the store stopped answering (SILENT)."""

    def __init__(self, outcome: ConnectOutcome, seen: str) -> None:
        super().__init__(seen)
        self.outcome = outcome


class Store:
    """One connection to a TCPStore; every key gets `prefix`. One request at a time, except `wait_begin`.

    `seconds` is how long an answer may take; meanwhile `is_hopeless` is polled, which returns whether no answer can come;
    `address` is the address of the store.
    """

    def __init__(self, link: socket.socket, prefix: str = "", seconds: float = PATIENT_SECONDS) -> None:
        self.link = link
        self.prefix = prefix.encode()
        self._hidden, self._open = b"", frozenset[str]()
        self.seconds = seconds
        self.is_hopeless: Callable[[], bool] = lambda: False
        self.is_lost = False
        self.address = ""
        link.settimeout(min(DOUBT_SECONDS, seconds))
        self._send(bytes([StoreOp.VALIDATE]) + MAGIC)

    def fileno(self) -> int:
        return self.link.fileno()

    @property
    def own_address(self) -> str:
        """The address of this process, as the store sees it."""
        return str(self.link.getsockname()[0])

    def hide(self, prefix: str, *, except_for: frozenset[str]) -> None:
        """From now on, give all keys but these a further prefix, which others cannot guess."""
        self._hidden, self._open = prefix.encode(), except_for

    def wait_closed(self, seconds: float) -> None:
        """Wait until the store's process closes the connection: it never sends anything unasked."""
        select.select([self], [], [], seconds)

    def close(self) -> None:
        self.link.close()

    def ping(self) -> bool:
        """Whether the other end is a TCPStore."""
        nonce = os.urandom(4)
        self._send(bytes([StoreOp.PING]) + nonce)
        return self._receive(NONCE.size) == nonce

    def set(self, key: str, value: bytes) -> None:
        self._send(bytes([StoreOp.SET]) + pack(self._key(key), value))

    def get(self, key: str) -> bytes:
        """The value, b"" for a missing key (a plain GET of such a key would end the connection)."""
        if not self.check(key):
            return b""
        self._send(bytes([StoreOp.GET]) + pack(self._key(key)))
        return self._value()

    def check(self, key: str) -> bool:
        """Whether the key exists."""
        self._send(bytes([StoreOp.CHECK]) + NUMBER.pack(1) + pack(self._key(key)))
        return self._receive(1)[0] == READY

    def add(self, key: str, amount: int) -> int:
        """The new sum."""
        self._send(bytes([StoreOp.ADD]) + pack(self._key(key)) + SIGNED.pack(amount))
        return int(SIGNED.unpack(self._receive(SIGNED.size))[0])

    def append(self, key: str, value: bytes) -> None:
        self._send(bytes([StoreOp.APPEND]) + pack(self._key(key), value))

    def claim(self, key: str, value: bytes) -> bytes:
        """Set a key if it is not set yet; return its value afterwards."""
        self._send(bytes([StoreOp.COMPARE_SET]) + pack(self._key(key), b"", value))
        return self._value()

    def delete(self, key: str) -> bool:
        self._send(bytes([StoreOp.DELETE]) + pack(self._key(key)))
        return bool(SIGNED.unpack(self._receive(SIGNED.size))[0])

    def wait_begin(self, key: str) -> None:
        """Wait for a key: the connection becomes readable when it is set. End it with `wait_end`."""
        self._send(bytes([StoreOp.WAIT]) + NUMBER.pack(1) + pack(self._key(key)))

    def wait_end(self, *, cancel: bool = False) -> bool:
        """Read the answer to `wait_begin`, after cancelling the wait if `cancel`; whether the key was set."""
        if not cancel:
            return self._receive(1)[0] == READY
        self._send(bytes([StoreOp.CANCEL]))
        if self._receive(1)[0] != READY:
            return False
        self._receive(1)  # the key was set during the cancellation, which the store answers too
        return True

    def _key(self, key: str) -> bytes:
        return self.prefix + (b"" if key in self._open else self._hidden) + key.encode()

    def _value(self) -> bytes:
        return self._receive(NUMBER.unpack(self._receive(NUMBER.size))[0])

    def _send(self, request: bytes) -> None:
        left, since = memoryview(request), time.monotonic()
        while left:
            try:
                left = left[self.link.send(left) :]
            except TimeoutError:
                self._check_patience(since, "did not accept a request")
            except OSError as error:
                raise self._lose(
                    ConnectOutcome.RESET, f"the connection to the store was lost: {error.strerror}"
                ) from None

    def _receive(self, size: int) -> bytes:
        chunks, since = bytearray(), time.monotonic()
        while len(chunks) < size:
            try:
                chunk = self.link.recv(min(size - len(chunks), 1 << 20))
            except TimeoutError:
                self._check_patience(since, "did not answer")
                continue
            except OSError as error:
                raise self._lose(
                    ConnectOutcome.RESET, f"the connection to the store was lost: {error.strerror}"
                ) from None
            if not chunk:
                raise self._lose(ConnectOutcome.RESET, "the store closed the connection")
            chunks += chunk
        return bytes(chunks)

    def _check_patience(self, since: float, what: str) -> None:
        """Raise StoreLost if the answer took too long, or none can come."""
        waited = time.monotonic() - since
        if waited >= self.seconds or self.is_hopeless():
            raise self._lose(ConnectOutcome.SILENT, f"the store {what} within {waited:.1f} s")

    def _lose(self, outcome: ConnectOutcome, seen: str) -> StoreLost:
        self.is_lost = True
        return StoreLost(outcome, seen)


def connect(host: str, port: int, prefix: str, seconds: float) -> Store:
    """One attempt to reach the store at host:port.

    Raises:
        StoreError: it is not reachable within `seconds`.
        OSError: this process is out of file descriptors.
    """
    end = time.monotonic() + seconds
    failures: list[StoreError] = []
    lookup = look_up(host, max(seconds, 0.1))
    if lookup.is_late:
        raise StoreError(ConnectOutcome.UNRESOLVED, f"looking up {host!r} timed out after {seconds:.1f} s")
    if lookup.error is not None:
        raise StoreError(ConnectOutcome.UNRESOLVED, f"{host!r}: {lookup.error}")
    for address in lookup.addresses:
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            link = tcp.connect(address, port, left)
        except OSError as error:
            if error.errno in tcp.OUT_OF_FILES:
                raise
            failures.append(_failure(error, f"{host}:{port}", address, left - (end - time.monotonic())))
            continue
        try:
            store = handshake(link, prefix, min(PATIENT_SECONDS, max(seconds, 0.5)))
        except StoreError:
            link.close()
            raise
        store.seconds, store.address = PATIENT_SECONDS, address
        return store
    raise _most_telling(failures) or StoreError(
        ConnectOutcome.NO_ANSWER, f"{host}:{port}: no answer within {seconds:.1f} s"
    )


def handshake(link: socket.socket, prefix: str, seconds: float) -> Store:
    """The store at the other end of a connection, which stays open.

    Raises:
        StoreError: the server is not a store (STRANGER), or does not answer within `seconds` (SILENT).
    """
    try:
        store = Store(link, prefix, seconds)
        if store.ping():
            return store
        outcome, seen = ConnectOutcome.STRANGER, "sent an answer that is not a TCPStore's"
    except StoreLost as lost:
        if lost.outcome is ConnectOutcome.SILENT:
            outcome, seen = lost.outcome, f"did not answer within {seconds:.0f} s"
        else:
            outcome, seen = ConnectOutcome.STRANGER, "closed the connection"
    raise StoreError(outcome, f"the server accepted the connection, but {seen}")


def _failure(error: OSError, place: str, address: str, took: float) -> StoreError:
    outcome = tcp.refined(tcp.outcome_of(error), address, took)
    is_filtered = outcome is ConnectOutcome.NO_ANSWER and bool(answers_ping(address))
    return StoreError(outcome, f"{place}: {error.strerror or 'no answer'}", pings=is_filtered)


def _most_telling(failures: list[StoreError]) -> StoreError | None:
    """The failure to report: a firewall first, else the first address that answered."""
    filtered = (failure for failure in failures if failure.pings or failure.outcome is ConnectOutcome.PROHIBITED)
    answered = (failure for failure in failures if failure.outcome is not ConnectOutcome.NO_ANSWER)
    return next(filtered, None) or next(answered, None)
