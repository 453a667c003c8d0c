"""Tests the network between two nodes as NCCL and Gloo use it: an ephemeral port, 32 KiB echoed, a bandwidth sample."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

from ddpdoctor.facts.nodes import NodeLink
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.channel import READ_BYTES, NodeConnection
from ddpdoctor.multinode.messages import MAX_HELLO_BYTES, PROTOCOL, WireError
from ddpdoctor.network.aio import connect, look_up
from ddpdoctor.network.connect import outcome_of

__all__ = ["ALL_PAIRS", "TEST_SECONDS", "partners", "serve_echo", "try_link"]

ALL_PAIRS = 64
"""Up to this many nodes, each tests every other node; above, it tests log2(n) of them at distances 1, 2, 4, …"""
TEST_SECONDS = 3.0
"""Time limit per link; a lost SYN is retransmitted after 1 s."""
AGAIN_SECONDS = 1.5
"""Time limit per step of the retry with small packets."""
ECHO_BYTES = 32 << 10
SAMPLE_BYTES = 8 << 20
SAMPLE_SECONDS = 0.25
PINGS = 3
PIECE_BYTES = 256 << 10
NAME_SECONDS = 2.0


def partners(index: int, count: int) -> tuple[int, ...]:
    """The nodes that node `index` of `count` tests."""
    if count <= ALL_PAIRS:
        return tuple(other for other in range(count) if other != index)
    others, distance = [], 1
    while distance < count:
        others.append((index + distance) % count)
        distance *= 2
    return tuple(others)


async def serve_echo(channel: NodeConnection, key: str) -> None:
    """Echo data that asks for it, and count the rest.

    Raises:
        OSError: the connection was lost.
        WireError: the message is not a test.
    """
    writer = channel.writer
    await channel.send({"ddpdoctor": PROTOCOL, "kind": "here", "key": key})
    while message := await channel.receive():
        size = message.get("bytes")
        if type(size) is not int or not 0 <= size <= SAMPLE_BYTES:
            raise WireError("invalid size")
        left = size
        while left:
            piece = await channel.read(min(left, PIECE_BYTES))
            if not piece:
                return
            left -= len(piece)
            if message.get("back"):
                writer.write(piece)
                await writer.drain()
        await channel.send({"kind": "got", "bytes": size}, TEST_SECONDS)


async def try_link(link: NodeLink, token: str, key: str, authentication: Authentication, *, samples: bool) -> NodeLink:
    """The link with its test results. `key` is the target's: another machine may answer at its address."""
    if link.name:
        lookup = await look_up(link.name, NAME_SECONDS)
        link = replace(link, name="") if lookup.is_late else replace(link, resolved=lookup.addresses)
    if not link.address:
        return link
    connected = await connect(link.address, link.port, TEST_SECONDS, ECHO_BYTES, segment_bytes=0)
    if isinstance(connected, ConnectOutcome):
        return replace(link, outcome=connected)
    channel = NodeConnection(*connected, most=MAX_HELLO_BYTES)
    try:
        latency = await asyncio.wait_for(_greet(channel, token, key, authentication), TEST_SECONDS)
        link = replace(link, latency_seconds=latency)
        link = replace(link, is_echoed=await asyncio.wait_for(_echo(channel), TEST_SECONDS))
        return replace(link, gb_per_s=await _sample(channel)) if samples else link
    except asyncio.TimeoutError:
        # Either small packets passed and 32 KiB did not, or nothing came back at any size.
        is_size = link.latency_seconds is not None and await _passes_in_small_packets(link, token, key, authentication)
        return replace(link, is_echoed=False) if is_size else replace(link, outcome=ConnectOutcome.SILENT)
    except OSError as error:
        return replace(link, outcome=outcome_of(error))
    except (WireError, asyncio.IncompleteReadError):
        return replace(link, outcome=ConnectOutcome.STRANGER)
    finally:
        channel.writer.close()


async def _greet(channel: NodeConnection, token: str, key: str, authentication: Authentication) -> float:
    """The lowest latency of a few small messages.

    Raises:
        WireError: another machine answers at this address.
    """
    await authentication.prove_to_host(channel, token)
    await channel.send({"ddpdoctor": PROTOCOL, "kind": "echo", "token": token})
    answer = await channel.receive()
    if answer.get("kind") != "here" or answer.get("key") != key:
        raise WireError("another node")
    return min([await _ping(channel) for _ in range(PINGS)])


async def _echo(channel: NodeConnection) -> bool:
    payload = os.urandom(ECHO_BYTES)
    channel.announce({"bytes": ECHO_BYTES, "back": True}, payload)
    echoed = await channel.read_exactly(ECHO_BYTES)
    await channel.receive()
    return echoed == payload


async def _passes_in_small_packets(link: NodeLink, token: str, key: str, authentication: Authentication) -> bool:
    """Whether 32 KiB come back in packets far smaller than any MTU."""
    connected = await connect(link.address, link.port, AGAIN_SECONDS, READ_BYTES)
    if isinstance(connected, ConnectOutcome):
        return False
    channel = NodeConnection(*connected, most=MAX_HELLO_BYTES)
    try:
        await asyncio.wait_for(_greet(channel, token, key, authentication), AGAIN_SECONDS)
        return await asyncio.wait_for(_echo(channel), AGAIN_SECONDS)
    except (asyncio.TimeoutError, OSError, WireError, asyncio.IncompleteReadError):
        return False
    finally:
        channel.writer.close()


async def _ping(channel: NodeConnection) -> float:
    started = time.monotonic()
    channel.announce({"bytes": 0})
    await channel.receive()
    return round(time.monotonic() - started, 6)


async def _sample(channel: NodeConnection) -> float | None:
    """GB/s of a short stream; None if it is too slow to be measured in this time."""
    block = bytes(PIECE_BYTES)
    sent, started = 0, time.monotonic()
    while sent < SAMPLE_BYTES and time.monotonic() - started < SAMPLE_SECONDS:
        channel.announce({"bytes": PIECE_BYTES}, block)
        try:
            await asyncio.wait_for(channel.receive(), SAMPLE_SECONDS * 2)
        except asyncio.TimeoutError:
            return None
        sent += PIECE_BYTES
    seconds = time.monotonic() - started
    return round(sent / seconds / 1e9, 4) if sent and seconds else None
