"""A client of torch's TCPStore in pure Python: who does not answer is told apart by kind, and nothing imports torch."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ddpdoctor.facts.probe import Kind
from ddpdoctor.network.ping import answers_ping
from ddpdoctor.network.tcpstore.wire import MAGIC, NONCE, NUMBER, READY, SIGNED, Op, pack

__all__ = ["PATIENT_SECONDS", "Store", "StoreError", "StoreLost", "connect"]

PATIENT_SECONDS = 10.0
"""How long one answer may take where nothing is known to be wrong: on a busy machine; and torch's own server looks up the name
of every client that comes, and answers nobody meanwhile."""
DOUBT_SECONDS = 0.3
"""How long it may take until somebody looks whether anything is wrong."""
PROMPT_SECONDS = 0.5
"""A "no route to host" that comes sooner was sent by a firewall; the kernel needs about 3 s to find nobody by ARP."""

_ERRNO = {113: Kind.MASTER_WITHOUT_HOST, 101: Kind.NO_ROUTE, 22: Kind.NO_ROUTE, 111: Kind.REFUSED, 110: Kind.SILENT}


class StoreError(Exception):
    """The store cannot be reached; `kind` says how, the text what was seen."""

    def __init__(self, kind: Kind, seen: str) -> None:
        super().__init__(seen)
        self.kind = kind


class StoreLost(Exception):
    """The store was reached and went away, or stopped answering."""


class Store:
    """One connection to a TCPStore; every key gets `prefix`. One request at a time, `wait_begin` excepted.

    `seconds` is how long an answer may take, `is_hopeless` is asked meanwhile whether it is known that none will come;
    `address` is where the store is.
    """

    def __init__(self, link: socket.socket, prefix: str = "", seconds: float = PATIENT_SECONDS) -> None:
        self.link = link
        self.prefix = prefix.encode()
        self.seconds = seconds
        self.is_hopeless: Callable[[], bool] = lambda: False
        self.is_lost = False
        self.address = ""
        link.settimeout(min(DOUBT_SECONDS, seconds))
        self._send(bytes([Op.VALIDATE]) + MAGIC)

    def fileno(self) -> int:
        return self.link.fileno()

    @property
    def own_address(self) -> str:
        """Where this process is, seen from the store."""
        return str(self.link.getsockname()[0])

    def wait_closed(self, seconds: float) -> None:
        """Wait until the store's own process closes the connection: it says nothing that it is not asked for."""
        select.select([self], [], [], seconds)

    def close(self) -> None:
        self.link.close()

    def ping(self) -> bool:
        """Whether a store stands at the other end."""
        nonce = os.urandom(4)
        self._send(bytes([Op.PING]) + nonce)
        return self._receive(NONCE.size) == nonce

    def set(self, key: str, value: bytes) -> None:
        self._send(bytes([Op.SET]) + pack(self._key(key), value))

    def get(self, key: str) -> bytes:
        """The value, b"" for a key that is not there (a bare GET of such a key would cost the connection)."""
        if not self.check(key):
            return b""
        self._send(bytes([Op.GET]) + pack(self._key(key)))
        return self._value()

    def check(self, key: str) -> bool:
        """Whether the key is there."""
        self._send(bytes([Op.CHECK]) + NUMBER.pack(1) + pack(self._key(key)))
        return self._receive(1)[0] == READY

    def add(self, key: str, amount: int) -> int:
        """The new sum."""
        self._send(bytes([Op.ADD]) + pack(self._key(key)) + SIGNED.pack(amount))
        return int(SIGNED.unpack(self._receive(SIGNED.size))[0])

    def append(self, key: str, value: bytes) -> None:
        self._send(bytes([Op.APPEND]) + pack(self._key(key), value))

    def claim(self, key: str, value: bytes) -> bytes:
        """Set a key that nobody has set yet; the value that stands there afterwards."""
        self._send(bytes([Op.COMPARE_SET]) + pack(self._key(key), b"", value))
        return self._value()

    def num_keys(self) -> int:
        self._send(bytes([Op.NUM_KEYS]))
        return int(SIGNED.unpack(self._receive(SIGNED.size))[0])

    def delete(self, key: str) -> bool:
        self._send(bytes([Op.DELETE]) + pack(self._key(key)))
        return bool(SIGNED.unpack(self._receive(SIGNED.size))[0])

    def wait_begin(self, key: str) -> None:
        """Ask to be told when the key comes: the connection becomes readable. End it with `wait_end`."""
        self._send(bytes([Op.WAIT]) + NUMBER.pack(1) + pack(self._key(key)))

    def wait_end(self, *, cancel: bool = False) -> bool:
        """Read the answer to `wait_begin`, after calling the wait off if `cancel`; whether the key has come."""
        if not cancel:
            return self._receive(1)[0] == READY
        self._send(bytes([Op.CANCEL]))
        if self._receive(1)[0] != READY:
            return False
        self._receive(1)  # the key came while we called off: the store answers that as well
        return True

    def _key(self, key: str) -> bytes:
        return self.prefix + key.encode()

    def _value(self) -> bytes:
        return self._receive(NUMBER.unpack(self._receive(NUMBER.size))[0])

    def _send(self, request: bytes) -> None:
        left, since = memoryview(request), time.monotonic()
        while left:
            try:
                left = left[self.link.send(left) :]
            except TimeoutError:
                self._be_patient(since, "took no request")
            except OSError as error:
                raise self._lose(f"the store's connection broke: {error.strerror}") from None

    def _receive(self, size: int) -> bytes:
        chunks, since = bytearray(), time.monotonic()
        while len(chunks) < size:
            try:
                chunk = self.link.recv(min(size - len(chunks), 1 << 20))
            except TimeoutError:
                self._be_patient(since, "did not answer")
                continue
            except OSError as error:
                raise self._lose(f"the store's connection broke: {error.strerror}") from None
            if not chunk:
                raise self._lose("the store closed the connection")
            chunks += chunk
        return bytes(chunks)

    def _be_patient(self, since: float, words: str) -> None:
        """Give up when it took too long, or is known to be in vain."""
        waited = time.monotonic() - since
        if waited >= self.seconds or self.is_hopeless():
            raise self._lose(f"the store {words} within {waited:.1f} s")

    def _lose(self, words: str) -> StoreLost:
        self.is_lost = True
        return StoreLost(words)


Address = tuple[socket.AddressFamily, Any]


def connect(host: str, port: int, prefix: str, seconds: float) -> Store:
    """One attempt to reach the store at host:port.

    Raises:
        StoreError: it cannot be reached within `seconds`; the kind says how.
    """
    end = time.monotonic() + seconds
    errors: list[OSError] = []
    filtered: Kind | None = None
    for family, address in _resolve(host, port, seconds):
        left = end - time.monotonic()
        if left <= 0:
            break
        link = socket.socket(family, socket.SOCK_STREAM)
        link.settimeout(left)
        began = time.monotonic()
        try:
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            link.close()
            errors.append(error)
            filtered = filtered or _filtered(error, str(address[0]), time.monotonic() - began)
            continue
        store = _greet(link, prefix, min(PATIENT_SECONDS, max(seconds, 0.5)))
        store.seconds, store.address = PATIENT_SECONDS, str(address[0])
        return store
    if filtered is not None:
        raise StoreError(filtered, f"{host}:{port}: {errors[0].strerror or 'no answer'}")
    raise _explain(errors, host, port, seconds)


def _filtered(error: OSError, address: str, took: float) -> Kind | None:
    """Whether a firewall forbids or drops the connection to a machine that is there."""
    if error.errno == errno.EHOSTUNREACH and took < PROMPT_SECONDS:
        return Kind.PORT_REJECTED
    if isinstance(error, TimeoutError) and answers_ping(address):
        return Kind.PORT_DROPPED
    return None


def _greet(link: socket.socket, prefix: str, seconds: float) -> Store:
    try:
        store = Store(link, prefix, seconds)
        if store.ping():
            return store
        seen = "answered something that no torch store says"
    except StoreLost as lost:
        seen = "closed the connection" if "answer" not in str(lost) else f"did not answer within {seconds:.0f} s"
    link.close()
    raise StoreError(Kind.STRANGER, f"it accepted the connection and {seen}")


def _explain(errors: list[OSError], host: str, port: int, seconds: float) -> StoreError:
    for error in errors:
        if error.errno in _ERRNO:
            return StoreError(_ERRNO[error.errno], f"{host}:{port}: {error.strerror}")
    if errors and not any(isinstance(e, TimeoutError) for e in errors):
        return StoreError(Kind.REFUSED, f"{host}:{port}: {errors[0]}")
    return StoreError(Kind.SILENT, f"{host}:{port}: no answer within {seconds:.1f} s")


def _resolve(host: str, port: int, seconds: float) -> list[Address]:
    """Addresses of `host`. The resolver blocks in C without a deadline, so it is asked in a thread that may be left."""
    answers: list[list[Address] | OSError] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.append(error if isinstance(error, OSError) else OSError(0, str(error)))
        else:
            answers.append([(family, address) for family, _, _, _, address in found])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(max(seconds, 0.1))
    if not answers:
        raise StoreError(Kind.UNRESOLVABLE, f"the resolver did not answer for {host!r} within {seconds:.1f} s")
    answer = answers[0]
    if isinstance(answer, OSError):
        raise StoreError(Kind.UNRESOLVABLE, f"{host!r}: {answer.strerror}")
    return answer
