"""Listening the way that torch's store listens, looking names up with patience, and what became of a connection."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from ddpdoctor.facts.net import Outcome
from ddpdoctor.network.tcp_info import INFO_BYTES, sent_in_vain

__all__ = ["BACKLOG", "LATE", "answered", "dial", "is_lossy", "listen", "outcome_of", "raise_file_limit", "resolve"]

OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.NO_ANSWER,
    errno.ENETUNREACH: Outcome.NO_ROUTE,
    errno.EINVAL: Outcome.NO_ROUTE,
    errno.EHOSTUNREACH: Outcome.NO_HOST,
    errno.EACCES: Outcome.PROHIBITED,
    errno.EPERM: Outcome.PROHIBITED,
}
T = TypeVar("T")
BACKLOG = 4096
MOST_FILES = 1 << 16
SEGMENT_BYTES = 1000
"""The largest piece that the meeting itself sends: what nodes tell each other must pass where large packets vanish."""


def listen(port: int, *, is_small: bool = True) -> socket.socket:
    """A socket that listens on all addresses, IPv6 and IPv4 in one, as torch's TCPStore does.

    `is_small`: its connections send small packets only.

    Raises:
        OSError: the port is taken, or no socket can be had.
    """
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
            raise
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if is_small:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
            made.bind((everywhere, port))
            made.listen(BACKLOG)
            made.setblocking(False)
        except OSError as error:
            made.close()
            if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
                continue  # IPv6 is switched off on this machine
            raise
        return made
    raise OSError(errno.EAFNOSUPPORT, "neither IPv6 nor IPv4 here")


LATE = "no answer in time"
"""The resolver's words where it has not answered yet."""


async def resolve(name: str, seconds: float) -> tuple[tuple[str, ...], str | None]:
    """The addresses of a name in getaddrinfo's order and None, or () and the resolver's words."""

    def ask() -> tuple[tuple[str, ...], str | None]:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)), None
        except (OSError, UnicodeError) as error:
            return (), (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__

    return await answered(ask, seconds) or ((), LATE)


async def answered(ask: Callable[[], T], seconds: float) -> T | None:
    """What a blocking call returns, None when it takes too long.

    In a thread of its own that may be left behind: the resolver blocks in C, and an executor would wait for it at the end.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def tell(answer: T) -> None:
        if not found.done():
            found.set_result(answer)

    def work() -> None:
        answer = ask()
        try:
            loop.call_soon_threadsafe(tell, answer)
        except RuntimeError:
            return  # the meeting ended meanwhile

    threading.Thread(target=work, daemon=True).start()
    try:
        return await asyncio.wait_for(found, seconds)
    except asyncio.TimeoutError:
        return None


async def dial(
    address: str, port: int, seconds: float, limit: int, *, is_small: bool = True
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | Outcome:
    """A connection, or what became of it. `is_small`: it sends small packets only."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return outcome_of(error)
    try:
        made.setblocking(False)
        if is_small:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(made, (address, port)), seconds)
        return await asyncio.open_connection(sock=made, limit=limit)
    except asyncio.TimeoutError:
        made.close()
        return Outcome.NO_ANSWER
    except OSError as error:
        made.close()
        return outcome_of(error)
    except BaseException:  # cancelled: the socket would stay open
        made.close()
        raise


def is_lossy(writer: asyncio.StreamWriter) -> bool:
    """Whether what was said on a connection is lost on the way, so that silence says nothing of the other end."""
    made = writer.get_extra_info("socket")
    return bool(sent_in_vain(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)))


def outcome_of(error: OSError) -> Outcome:
    """An error of connecting as an outcome."""
    return OUTCOMES.get(error.errno or 0, Outcome.FAILED)


def raise_file_limit() -> int:
    """Allow as many open files as this user may have, and say how many: every node is a connection, and so is every port
    scanner.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard < 0 else min(hard, MOST_FILES)
    if 0 <= soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        except (OSError, ValueError):
            return soft  # it stays as it was
    return soft if soft >= 0 else MOST_FILES
