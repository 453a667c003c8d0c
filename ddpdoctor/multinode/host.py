"""The listening side: it admits the nodes of the job, rejects other clients, and sends the verdict to all members."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.nodes import Node, Proves, Stranger
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.authentication import Authentication, NotProvenError
from ddpdoctor.multinode.channel import NodeConnection, ReadBudget, send_heartbeats
from ddpdoctor.multinode.link_tests import serve_echo
from ddpdoctor.multinode.members import Member, lacks_its_script
from ddpdoctor.multinode.messages import (
    MAX_HELLO_BYTES,
    MOST_HELLO_VALUES,
    PROTOCOL,
    SILENT_SECONDS,
    WireError,
    encode_line,
)
from ddpdoctor.multinode.pending_connections import (
    HELLO_SECONDS,
    MOST_SILENT,
    QUERY_BYTES,
    STORE_QUERY,
    PendingConnections,
)
from ddpdoctor.network.aio import SEGMENT_BYTES
from ddpdoctor.network.connect import listen

__all__ = ["MemberConnection", "SessionHost"]

MOST_STRANGERS = 8
SENDING_SECONDS = 2.0
LOOK_SECONDS = 0.1
CLOSING_SECONDS = 1.0
"""How long the last messages may take to leave when a session ends."""
MOST_UNKNOWN = 32
"""Clients that have sent a first line and are no members yet; each may take 1 MiB."""
MOST_PARTIAL_BYTES = 8 << 20
"""Of incomplete lines of all connections together."""
MEMBER_BYTES, SPARE_BYTES = 128 << 10, 6 << 20
"""What the messages of members may take together: this much for each node that the job has, and some more."""
UNKNOWN_SIZE = 1024
"""Nodes of a job whose size this node does not know."""
SPARE_MEMBERS = 16
"""How many more nodes than the job has may join: wrong numbers of nodes are a common mistake."""


@dataclass
class MemberConnection:
    """An admitted member and its connection."""

    member: Member
    channel: NodeConnection
    cost: int = 0
    """About how many bytes of memory its messages take."""
    links: dict[str, Any] | None = None
    """Its message with the results of its link tests."""
    last_message_at: float = field(default_factory=time.monotonic)
    slowest: float = 0.0
    """The longest time without a message from it."""

    @property
    def is_silent(self) -> bool:
        """Whether its process was suspended, or its machine is gone, which the connection does not show."""
        return time.monotonic() - self.last_message_at > SILENT_SECONDS


@dataclass
class SessionHost:
    """The server of one node's session. `changed` is set whenever a member joins, leaves or sends a message."""

    me: Member
    token: str
    changed: asyncio.Event
    files: int
    """How many files may be open."""
    seconds_left: Callable[[], float]
    host_address: Callable[[], str | None]
    """The address of the host that this node has joined, None while it has not joined any."""
    connections: dict[str, MemberConnection] = field(default_factory=dict)
    left: dict[str, Node] = field(default_factory=dict)
    """Nodes that joined and left, by their hosts."""
    joined_keys: set[str] = field(default_factory=set)
    """The keys of all admitted nodes: they may rejoin at any time."""
    strangers: dict[Stranger, None] = field(default_factory=dict)
    opened: float = field(default_factory=time.monotonic)
    is_full: bool = False
    """The job is complete: a further node is one too many."""
    authentication: Authentication = field(default_factory=Authentication)
    _unknown: dict[asyncio.StreamWriter, None] = field(default_factory=dict)
    _budget: ReadBudget = field(default_factory=lambda: ReadBudget(MOST_PARTIAL_BYTES))

    def __post_init__(self) -> None:
        most_silent = max(16, min(MOST_SILENT, self.files // 4))
        self._most_unknown = min(MOST_UNKNOWN, most_silent)
        self._pending = PendingConnections(MAX_HELLO_BYTES, self._remember, most_silent)

    def open(self, name: str, made: socket.socket | int) -> int:
        """Listen on a port (0: chosen by the kernel), as `main`, `door` or `echo`; return the port.

        Raises:
            OSError: the port is in use.
        """
        listening = (
            listen(made, segment_bytes=0 if name == "echo" else SEGMENT_BYTES) if isinstance(made, int) else made
        )
        via = "main" if name == "main" else "door"

        async def serve(sent: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(sent, reader, writer, via)

        self._pending.listen(name, listening, serve)
        return int(listening.getsockname()[1])

    def open_echo(self, addresses: Collection[str]) -> int:
        """Listen for link tests at the addresses that the other nodes are told to connect to, and nowhere else; at all
        addresses if there is none, or if one cannot be used. The port is the same at each.

        Raises:
            OSError: no port is free.
        """
        opened: list[socket.socket] = []
        try:
            for address in addresses:
                port = int(opened[0].getsockname()[1]) if opened else 0
                opened.append(listen(port, address.partition("%")[0]))
        except OSError:  # the address was removed, or needs its interface named
            for each in opened:
                each.close()
            opened = []
        for at, each in enumerate(opened):
            self.open("echo" if at == 0 else f"echo {at}", each)
        return int(opened[0].getsockname()[1]) if opened else self.open("echo", 0)

    def has(self, name: str) -> bool:
        """Whether it listens as `main` or `door`."""
        return name in self._pending

    @property
    def members(self) -> list[Member]:
        """All joined nodes, this node first."""
        return [self.me, *(connection.member for connection in self.connections.values())]

    async def broadcast(self, message: dict[str, Any], places: Mapping[str, dict[str, Any]] | None = None) -> None:
        """Send a message to all members in parallel, without waiting for those that have left meanwhile.

        `places` are additional fields for single members, by their keys, sent as a separate line before the message.
        """
        line = encode_line(message)
        own = {key: encode_line({"kind": "place", **words}) for key, words in (places or {}).items()}
        await asyncio.gather(
            *(
                self.send_to(connection, own.get(connection.member.key, b"") + line)
                for connection in list(self.connections.values())
            )
        )

    async def send_to(self, connection: MemberConnection, lines: bytes) -> None:
        """Send lines to one member."""
        with contextlib.suppress(OSError):
            await connection.channel.send_lines(lines, SENDING_SECONDS)

    async def change(self, seconds: float = LOOK_SECONDS) -> None:
        """Wait until a member joins, leaves or sends a message, for at most `seconds`."""
        self.changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)

    def disconnect(self, keys: Collection[str] | None = None) -> None:
        """Close the connections of these members, by default of all: they search for the host again."""
        for key in list(self.connections) if keys is None else keys:
            connection = self.connections.pop(key, None)
            if connection is not None:
                connection.channel.writer.close()

    def close_ports(self) -> None:
        """Close all listening ports; connections stay open."""
        self._pending.close_ports()

    async def close(self) -> None:
        """Close all connections and ports, once the last message to each member is out, for at most `CLOSING_SECONDS`."""
        writers = [*self._unknown, *(connection.channel.writer for connection in self.connections.values())]
        for writer in writers:
            writer.close()
        await self._pending.close()
        closing = [asyncio.ensure_future(writer.wait_closed()) for writer in writers]
        if closing:
            await asyncio.wait(closing, timeout=CLOSING_SECONDS)
        for writer, task in zip(writers, closing, strict=True):
            if not task.done():  # a member that reads nothing any more
                writer.transport.abort()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _serve(self, sent: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, via: str) -> None:
        self._unknown[writer] = None
        if len(self._unknown) > self._most_unknown:
            next(iter(self._unknown)).close()
        channel = NodeConnection(
            reader, writer, most=MAX_HELLO_BYTES, most_values=MOST_HELLO_VALUES, budget=self._budget, start=sent
        )
        try:
            if sent.startswith(STORE_QUERY):
                writer.write(sent[6:QUERY_BYTES])  # the nonce of the PING: the job's own ddpdoctor has this port
                await writer.drain()
                return
            message = await asyncio.wait_for(self._first_message(channel), HELLO_SECONDS)
            self._unknown.pop(writer, None)
            await self._receive(message, channel, via)
        except (OSError, WireError, asyncio.TimeoutError):
            self._remember(writer.get_extra_info("peername"))
        finally:
            self._unknown.pop(writer, None)
            writer.close()

    async def _first_message(self, channel: NodeConnection) -> dict[str, Any]:
        """The first message after the proofs; {} for a client that was refused because it has none.

        Raises:
            WireError, OSError: the client violated the protocol, or the connection was lost.
        """
        message = await channel.receive()
        is_ours, own = message.get("token") == self.token, self.authentication
        if message.get("ddpdoctor") != PROTOCOL or not (is_ours or (message.get("kind") == "prove" and own.proves)):
            return message
        node = message.get("node")
        host = node.get("host") if isinstance(node, dict) else message.get("host")
        name = host if isinstance(host, str) else ""
        try:
            if message.get("kind") == "prove":
                await own.check_client(channel, message, {} if is_ours else self._other_job())
                return await channel.receive()
            if own.proves:
                await own.refuse(channel)
                raise NotProvenError(Proves.NOTHING)
        except NotProvenError as error:
            if is_ours:
                self._remember_unproven(channel, name, error.proves)
            else:
                self._remember(channel.writer.get_extra_info("peername"), message)
            return {}
        return message

    def _other_job(self) -> dict[str, Any]:
        return {**self._introduction("other-job"), "token": self.token}

    async def _receive(self, message: dict[str, Any], channel: NodeConnection, via: str) -> None:
        if not message:
            return
        peer = channel.writer.get_extra_info("peername")
        if message.get("ddpdoctor") != PROTOCOL:
            if message.get("token") == self.token:
                self._remember(peer, message)
                self.changed.set()
            await channel.send({"ddpdoctor": PROTOCOL, "kind": "other-version", "host": self.me.node.host})
            return
        is_trusted = channel.is_proven or not self.authentication.proves
        if message.get("token") != self.token and not (is_trusted and self._lacks_its_script(message)):
            self._remember(peer, message, is_proven=channel.is_proven)
            await channel.send(self._other_job())
            return
        kind = message.get("kind")
        if kind == "who":
            await channel.send(self._introduction("i-am"))
        elif kind == "echo":
            await serve_echo(channel, self.me.key)
        elif kind == "hello" and self.is_full and message.get("key") not in self.joined_keys:
            occupant = self._same_number(Member.of(message).node)
            await channel.send({**self._introduction("full"), "node": encode(occupant)})
        elif kind == "hello":
            await self._admit(Member.of(message), channel, via)
        else:
            raise WireError("unknown kind of message")

    def _lacks_its_script(self, message: dict[str, Any]) -> bool:
        """Whether a node that names another script may still be part of this job."""
        return message.get("kind") == "hello" and lacks_its_script(Member.of(message).node, self.members)

    def _same_number(self, node: Node) -> Node:
        """The member that has the place of a node that is one too many; this node itself if none has."""
        number = (node.node_rank, node.rank)
        return next((g.node for g in self.members if (g.node.node_rank, g.node.rank) == number), self.me.node)

    def _introduction(self, kind: str) -> dict[str, Any]:
        return {
            "ddpdoctor": PROTOCOL,
            "kind": kind,
            "key": self.me.key,
            "host": self.me.node.host,
            "script": self.me.node.script,
            "rdzv_id": self.me.node.rdzv_id,
            "port": self.me.node.master_port,
            "has_main": self.has("main"),
            "owns": self.me.node.owns,
            "guest_at": self.host_address(),
            "seconds": self.seconds_left(),
        }

    async def _admit(self, member: Member, channel: NodeConnection, via: str) -> None:
        offset = None if member.clock is None else round(member.clock - time.time(), 3)
        waited = round(time.monotonic() - self.opened, 3)
        before = self.connections.get(member.key)
        if before is not None:
            waited = before.member.node.waited_seconds or waited
            before.channel.writer.close()
        self._check_room(member.key, channel.cost)
        node = replace(member.node, came=via, waited_seconds=waited, clock_seconds=offset)
        self.left.pop(node.host, None)
        if len(self.joined_keys) < self._most_members:
            self.joined_keys.add(member.key)
        joined = replace(member, node=node)
        connection = self.connections[member.key] = MemberConnection(joined, channel, channel.cost)
        heartbeats = asyncio.create_task(send_heartbeats(channel))
        try:
            await channel.send(self._introduction("welcome"))
            self.changed.set()
            while message := await channel.receive():
                now = time.monotonic()
                connection.last_message_at, connection.slowest = (
                    now,
                    max(connection.slowest, now - connection.last_message_at),
                )
                if message.get("kind") != "alive":
                    self._take(connection, message)
                    self.changed.set()
        finally:
            heartbeats.cancel()
            await asyncio.gather(heartbeats, return_exceptions=True)
            if self.connections.get(member.key) is connection:
                del self.connections[member.key]
                if len(self.left) < self._most_members:
                    self.left[node.host] = node
                self.changed.set()

    @property
    def _size_of_job(self) -> int:
        return max(self.me.node.nnodes or 0, self.me.node.world_size or 0) or UNKNOWN_SIZE

    @property
    def _most_members(self) -> int:
        """How many nodes may join: a client can pretend to be any number."""
        return 2 * self._size_of_job + SPARE_MEMBERS

    def _check_room(self, key: str, cost: int) -> None:
        """Refuse a message that exceeds the memory limit of the session.

        Raises:
            WireError: there is none.
        """
        others = [connection.cost for connection in self.connections.values() if connection.member.key != key]
        if len(others) >= self._most_members or sum(others) + cost > SPARE_BYTES + MEMBER_BYTES * self._size_of_job:
            raise WireError("too much for one session")

    def _take(self, connection: MemberConnection, message: dict[str, Any]) -> None:
        """Keep what a member sent.

        Raises:
            WireError: it is too much, or not a hello message.
        """
        if message.get("kind") not in ("links", "hello"):
            return
        cost = connection.channel.cost + (connection.cost if message.get("kind") == "links" else 0)
        self._check_room(connection.member.key, cost)
        if message.get("kind") == "links":
            connection.cost = cost if connection.links is None else max(connection.cost, connection.channel.cost)
            connection.links = message
        else:
            update = Member.of(message)
            connection.cost = cost
            node = replace(
                update.node,
                came=connection.member.node.came,
                waited_seconds=connection.member.node.waited_seconds,
                clock_seconds=connection.member.node.clock_seconds,
            )
            connection.member = replace(update, node=node)

    def _remember_unproven(self, channel: NodeConnection, host: str, proves: str) -> None:
        """Remember a client that claims to be a node of this job and does not prove it."""
        peer = channel.writer.get_extra_info("peername")
        address = "" if peer is None else str(peer[0]).removeprefix("::ffff:")
        if len(self.strangers) < MOST_STRANGERS:
            self.strangers[Stranger(host[:80] or address, is_node=False, proves=proves, address=address)] = None

    def _remember(
        self, peer: tuple[Any, ...] | None, message: dict[str, Any] | None = None, *, is_proven: bool = False
    ) -> None:
        """Remember a client that is not a node of this job."""
        if peer is None or len(self.strangers) >= MOST_STRANGERS:
            return
        node = (message or {}).get("node")
        if isinstance(node, dict) and isinstance(node.get("host"), str):
            details = {key: node[key][:80] for key in ("script", "rdzv_id") if isinstance(node.get(key), str)}
            number = (message or {}).get("ddpdoctor")
            protocol = number if type(number) is int and number != PROTOCOL else None
            known = Stranger(node["host"][:80], is_node=protocol is None, protocol=protocol, **details)
            self.strangers[replace(known, is_proven=is_proven)] = None
        elif message is None:
            self.strangers[Stranger(str(peer[0]).removeprefix("::ffff:"), is_node=False)] = None
