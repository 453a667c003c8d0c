"""UDP discovery of the other nodes, for a node whose job address resolves to no machine or a wrong one.

One small datagram is broadcast on each local network and sent to the nodes that the scheduler names (clouds have no
broadcast, and nodes may be in several networks), to ddpdoctor's first port. Only the host of the session answers, only
requests of its own job for a place that is still empty, and with less data than it received: its side port. Everything
else is sent over that port. A node that gives up without an answer broadcasts its reason in the same way.
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

from ddpdoctor.multinode.members import Member, expected, missing
from ddpdoctor.multinode.messages import PROTOCOL, WireError, decode_line, encode_line
from ddpdoctor.network.aio import look_up

__all__ = [
    "PORT",
    "addresses_of",
    "announce_leaving",
    "discover",
    "discovery_request",
    "is_awaited",
    "leave_message",
    "listen_for_requests",
]

PORT = 28913
MOST_BYTES = 1400
PROOF_BYTES = 512
"""What is left free for the proof of a datagram: munge's is the longest."""
MOST_INTERFACES = 16
MOST_HOSTS = 64
NAME_SECONDS = 2.0
ANSWER_SECONDS = 0.5
LEAVE_REPEATS = 4
LEAVE_PAUSE_SECONDS = 0.05
MOST_CHARACTERS = 300
"""Characters of a message in a datagram."""
FINDING_FIELDS = ("code", "name", "severity", "role", "where")
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
IFF_UP, IFF_BROADCAST, IFF_LOOPBACK = 0x1, 0x2, 0x8


def discovery_request(me: Member, token: str) -> dict[str, Any]:
    """A node's discovery request: its job, and its place in it."""
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


def is_awaited(message: dict[str, Any], me: Member, members: list[Member], token: str) -> bool:
    """Whether a request or a leave message is from a node of this job that has not joined its session."""
    mine = discovery_request(me, token)
    if message.get("kind") not in ("call", "gone") or message.get("key") == me.key:
        return False
    if any(message.get(key) != mine[key] for key in ("ddpdoctor", "token", "job")):
        return False
    nodes = [member.node for member in members]
    number = message.get("number")
    return len(nodes) < expected(nodes) and (number is None or number in missing(nodes))


def leave_message(me: Member, token: str, errors: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a node that gives up: its job, its place, and its findings as far as they fit into a datagram."""
    fields: dict[str, Any] = {**discovery_request(me, token), "kind": "gone", "host": me.node.host[:60], "errors": []}
    for error in errors:
        short = {key: error[key] for key in FINDING_FIELDS if key in error}
        longer = [*fields["errors"], {**short, "message": str(error.get("message"))[:MOST_CHARACTERS]}]
        if len(encode_line({**fields, "errors": longer, "by_name": True})) > MOST_BYTES - PROOF_BYTES:
            break
        fields["errors"] = longer
    return fields


async def addresses_of(hosts: Sequence[str]) -> tuple[str, ...]:
    """An IPv4 address of each of these nodes whose name resolves."""
    lookups = await asyncio.gather(*(look_up(host, NAME_SECONDS) for host in hosts[:MOST_HOSTS]))
    ipv4 = (next((address for address in lookup.addresses if ":" not in address), None) for lookup in lookups)
    return tuple(dict.fromkeys(address for address in ipv4 if address is not None))


async def announce_leaving(message: dict[str, Any], others: Sequence[str]) -> None:
    """Send it to every local network and to `others`, a few times because datagrams may be lost. There is no answer."""
    with contextlib.suppress(OSError):
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("0.0.0.0", 0), allow_broadcast=True
        )
        for _ in range(LEAVE_REPEATS):
            _send(transport, message, others)
            await asyncio.sleep(LEAVE_PAUSE_SECONDS)
        transport.close()


class _DatagramHandler(asyncio.DatagramProtocol):
    """Hands every message of the protocol to `on_message`, which may return an answer."""

    def __init__(self, on_message: Callable[[dict[str, Any], str], dict[str, Any] | None]) -> None:
        self._on_message = on_message

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # asyncio's type is not precise before 3.12

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if len(data) > MOST_BYTES:
            return
        try:
            answer = self._on_message(decode_line(data), address[0])
        except WireError:
            return
        if answer is not None:
            self._transport.sendto(encode_line(answer), address)

    def error_received(self, error: Exception) -> None:
        """An ICMP error: no process listens there."""


async def listen_for_requests(
    answer: Callable[[dict[str, Any], str], dict[str, Any] | None],
) -> asyncio.BaseTransport | None:
    """Answer requests until the transport is closed; None if the port cannot be bound. ddpdoctors of one machine share it."""
    with contextlib.suppress(OSError):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setblocking(False)
            made.bind(("", PORT))
            return (
                await asyncio.get_running_loop().create_datagram_endpoint(lambda: _DatagramHandler(answer), sock=made)
            )[0]
        except OSError:
            made.close()
    return None


async def discover(message: dict[str, Any], others: Sequence[str]) -> tuple[str, int | None] | None:
    """Send one request to every local network and to `others`: the address and side port of the host that answers first;
    the address only if one of its members answers; None without an answer.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[tuple[str, int | None]] = loop.create_future()

    def on_reply(reply: dict[str, Any], address: str) -> None:
        side_port = reply.get("door")
        is_ours = reply.get("kind") == "here" and reply.get("token") == message["token"]
        if is_ours and type(side_port) is int and 0 < side_port < 65536 and not found.done():
            member_of = reply.get("guest_at")
            found.set_result((member_of, None) if isinstance(member_of, str) else (address, side_port))

    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _DatagramHandler(on_reply), local_addr=("0.0.0.0", 0), allow_broadcast=True
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
    for broadcast in _broadcasts():
        transport.sendto(encode_line(message), (broadcast, PORT))
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
