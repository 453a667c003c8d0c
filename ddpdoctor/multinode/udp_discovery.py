"""Calling for the others on the own network: for a node to which the job's address leads nowhere, or to a wrong machine.

One small datagram to all on each local network, and to the nodes that the scheduler names (clouds know no broadcast, and
nodes may be in several networks), at the first of the doctor's own ports. Only the node that hosts the
meeting answers, only a call of its own job for a place that is still empty, and with less than it was sent: where its
side door is. Everything else is said there. A node that gives up, because no answer came, says why in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from ddpdoctor.multinode.members import Guest, expected, missing
from ddpdoctor.multinode.messages import PROTOCOL, WireError, decode_line, encode_line
from ddpdoctor.network.aio import look_up

__all__ = ["PORT", "addresses_of", "call", "call_of", "is_awaited", "leave", "leaving", "listen_for_calls"]

PORT = 28913
MOST_BYTES = 1400
MOST_INTERFACES = 16
MOST_HOSTS = 64
NAME_SECONDS = 2.0
ANSWER_SECONDS = 0.5
FAREWELLS = 4
FAREWELL_SECONDS = 0.05
MOST_SAID = 300
"""Characters of a sentence in a datagram."""
WHAT_MATTERS = ("code", "name", "severity", "role", "where")
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
IFF_UP, IFF_BROADCAST, IFF_LOOPBACK = 0x1, 0x2, 0x8


def call_of(me: Guest, token: str) -> dict[str, Any]:
    """What a node calls: which place of which job it has."""
    node = me.node
    return {
        "ddpdoctor": PROTOCOL,
        "kind": "call",
        "token": token,
        "key": me.key,
        "job": [node.form, node.nnodes, node.world_size, node.master_port, node.rdzv_id, node.script_hash],
        "master_addr": node.master_addr,
        "owns": node.owns,
        "number": node.node_rank if node.rank is None else node.rank,
    }


def is_awaited(told: dict[str, Any], me: Guest, guests: list[Guest], token: str) -> bool:
    """Whether a call, or a farewell, comes from a node of this job that has not come to its meeting."""
    mine = call_of(me, token)
    if told.get("kind") not in ("call", "gone") or told.get("key") == me.key:
        return False
    if any(told.get(key) != mine[key] for key in ("ddpdoctor", "token", "job")):
        return False
    nodes = [guest.node for guest in guests]
    number = told.get("number")
    return len(nodes) < expected(nodes) and (number is None or number in missing(nodes))


def leaving(me: Guest, token: str, errors: list[dict[str, Any]]) -> dict[str, Any]:
    """What a node says that gives up: which place of which job it leaves empty, and why, as far as a datagram holds it."""
    said: dict[str, Any] = {**call_of(me, token), "kind": "gone", "host": me.node.host[:60], "errors": []}
    for each in errors:
        short = {key: each[key] for key in WHAT_MATTERS if key in each}
        longer = [*said["errors"], {**short, "message": str(each.get("message"))[:MOST_SAID]}]
        if len(encode_line({**said, "errors": longer, "by_name": True})) > MOST_BYTES:
            break
        said["errors"] = longer
    return said


async def addresses_of(hosts: Sequence[str]) -> tuple[str, ...]:
    """An IPv4 address of each of these nodes whose name is known here."""
    lookups = await asyncio.gather(*(look_up(host, NAME_SECONDS) for host in hosts[:MOST_HOSTS]))
    ipv4 = (next((address for address in found.addresses if ":" not in address), None) for found in lookups)
    return tuple(dict.fromkeys(address for address in ipv4 if address is not None))


async def leave(message: dict[str, Any], others: Sequence[str]) -> None:
    """Say it on every local network and at the addresses `others`, a few times because datagrams may be lost; nobody answers."""
    with contextlib.suppress(OSError):
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("0.0.0.0", 0), allow_broadcast=True
        )
        for _ in range(FAREWELLS):
            _send(transport, message, others)
            await asyncio.sleep(FAREWELL_SECONDS)
        transport.close()


class _Ear(asyncio.DatagramProtocol):
    """Hands every message of the protocol to `heard`, which may return an answer."""

    def __init__(self, heard: Callable[[dict[str, Any], str], dict[str, Any] | None]) -> None:
        self._heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # asyncio's own class does not say so before 3.12

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if len(data) > MOST_BYTES:
            return
        try:
            answer = self._heard(decode_line(data), address[0])
        except WireError:
            return
        if answer is not None:
            self._transport.sendto(encode_line(answer), address)

    def error_received(self, error: Exception) -> None:
        """An ICMP message: nobody listens there."""


async def listen_for_calls(
    answer: Callable[[dict[str, Any], str], dict[str, Any] | None],
) -> asyncio.BaseTransport | None:
    """Answer calls until the transport is closed; None where the port cannot be had. Several doctors of a machine share it."""
    with contextlib.suppress(OSError):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setblocking(False)
            made.bind(("", PORT))
            return (await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Ear(answer), sock=made))[0]
        except OSError:
            made.close()
    return None


async def call(message: dict[str, Any], others: Sequence[str]) -> tuple[str, int | None] | None:
    """Call once on every local network and at the addresses `others`: the address and the side door of the host that answers
    first; the address only, where one of its guests does; None without an answer.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[tuple[str, int | None]] = loop.create_future()

    def hear(told: dict[str, Any], address: str) -> None:
        door = told.get("door")
        is_ours = told.get("kind") == "here" and told.get("token") == message["token"]
        if is_ours and type(door) is int and 0 < door < 65536 and not found.done():
            guest_at = told.get("guest_at")
            found.set_result((guest_at, None) if isinstance(guest_at, str) else (address, door))

    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Ear(hear), local_addr=("0.0.0.0", 0), allow_broadcast=True
        )
    except OSError:
        return None
    try:
        _send(transport, message, others)
        return await asyncio.wait_for(found, ANSWER_SECONDS)
    except asyncio.TimeoutError:
        return None
    finally:
        transport.close()


def _send(transport: asyncio.DatagramTransport, message: dict[str, Any], others: Iterable[str]) -> None:
    for everybody in _broadcasts():
        transport.sendto(encode_line(message), (everybody, PORT))
    for address in others:
        transport.sendto(encode_line({**message, "by_name": True}), (address, PORT))


def _broadcasts() -> Iterator[str]:
    """The broadcast address of each local network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:

        def ask(name: str, what: int) -> bytes:
            return fcntl.ioctl(asking, what, struct.pack("256s", name.encode()[:15]))

        for _, name in socket.if_nameindex()[:MOST_INTERFACES]:
            try:
                (flags,) = struct.unpack("H", ask(name, SIOCGIFFLAGS)[16:18])
                if flags & (IFF_UP | IFF_BROADCAST | IFF_LOOPBACK) != IFF_UP | IFF_BROADCAST:
                    continue
                address, mask = (socket.inet_ntoa(ask(name, what)[20:24]) for what in (SIOCGIFADDR, SIOCGIFNETMASK))
            except OSError:
                continue  # no IPv4 address
            network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
            if network.prefixlen < 31:
                yield str(network.broadcast_address)
