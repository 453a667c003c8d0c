"""The resolver and TCP connections for asyncio, with the outcome table and the socket options of `network.connect`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

from ddpdoctor.facts.reachability import ConnectOutcome, Lookup
from ddpdoctor.network.connect import family_of, outcome_of, prepare
from ddpdoctor.network.resolve import late, look_up_now
from ddpdoctor.system.timeouts import start_thread

__all__ = ["SEGMENT_BYTES", "call_in_thread", "connect", "look_up"]

SEGMENT_BYTES = 1000
"""The largest TCP segment of the nodes' own messages: they must pass on paths that drop large packets."""
T = TypeVar("T")


async def look_up(name: str, seconds: float) -> Lookup:
    """What `name` resolves to; a late lookup after `seconds`."""
    return await call_in_thread(lambda: look_up_now(name), seconds) or late(name, seconds)


async def call_in_thread(call: Callable[[], T], seconds: float) -> T | None:
    """The result of a blocking call, None if it takes longer than `seconds`.

    In its own thread, which may be abandoned: the resolver blocks in C, and an executor would wait for it at the end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_result(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def work() -> None:
        result = call()
        try:
            loop.call_soon_threadsafe(set_result, result)
        except RuntimeError:
            return  # the loop was closed meanwhile

    start_thread(work)
    try:
        return await asyncio.wait_for(future, seconds)
    except asyncio.TimeoutError:
        return None


async def connect(
    address: str, port: int, seconds: float, limit: int, segment_bytes: int = SEGMENT_BYTES
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | ConnectOutcome:
    """A connection to an address (not a name), or the outcome of the failure. `limit` is the longest line in bytes."""
    try:
        made = socket.socket(family_of(address), socket.SOCK_STREAM)
    except OSError as error:
        return outcome_of(error)
    try:
        made.setblocking(False)
        prepare(made, segment_bytes)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(made, (address, port)), seconds)
        return await asyncio.open_connection(sock=made, limit=limit)
    except asyncio.TimeoutError:
        made.close()
        return ConnectOutcome.NO_ANSWER
    except OSError as error:
        made.close()
        return outcome_of(error)
    except BaseException:  # cancelled: the socket would stay open
        made.close()
        raise
