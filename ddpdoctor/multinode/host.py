"""The listening side: it admits the nodes of the job, rejects other clients, and sends the verdict to all members."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.nodes import Node, Stranger
from ddpdoctor.multinode.link_tests import serve_echo
from ddpdoctor.multinode.members import Member, lacks_its_script
from ddpdoctor.multinode.messages import (
    MAX_HELLO_BYTES,
    PROTOCOL,
    SILENT_SECONDS,
    WireError,
    decode_line,
    encode_line,
    receive_message,
    send_heartbeats,
    send_lines,
    send_message,
)
from ddpdoctor.multinode.pending_connections import HELLO_SECONDS, MOST_SILENT, PendingConnections
from ddpdoctor.network.aio import SEGMENT_BYTES
from ddpdoctor.network.connect import listen

__all__ = ["MemberConnection", "SessionHost"]

MOST_STRANGERS = 8
SENDING_SECONDS = 2.0
LOOK_SECONDS = 0.1
CLOSING_SECONDS = 1.0
"""How long the last messages may take to leave when a session ends."""
STORE_QUERY = b"\x00"
"""The first byte of torch's TCPStore queries, with which another ddpdoctor examines the port."""


@dataclass
class MemberConnection:
    """An admitted member and its connection."""

    member: Member
    writer: asyncio.StreamWriter
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
    _unknown: dict[asyncio.StreamWriter, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._most_unknown = max(16, min(MOST_SILENT, self.files // 4))
        self._pending = PendingConnections(MAX_HELLO_BYTES, self._remember, self._most_unknown)

    def open(self, name: str, made: socket.socket | int) -> int:
        """Listen on a port (0: chosen by the kernel), as `main`, `door` or `echo`; return the port.

        Raises:
            OSError: the port is in use.
        """
        listening = (
            listen(made, segment_bytes=0 if name == "echo" else SEGMENT_BYTES) if isinstance(made, int) else made
        )
        via = "main" if name == "main" else "door"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, via)

        self._pending.listen(name, listening, serve)
        return int(listening.getsockname()[1])

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
            await send_lines(connection.writer, lines, SENDING_SECONDS)

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
                connection.writer.close()

    def close_ports(self, *names: str) -> None:
        """Close listening ports; connections stay open."""
        for name in names:
            self._pending.close_port(name)

    async def close(self) -> None:
        """Close all connections and ports, once the last message to each member is out, for at most `CLOSING_SECONDS`."""
        writers = [*self._unknown, *(connection.writer for connection in self.connections.values())]
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, via: str) -> None:
        self._unknown[writer] = None
        if len(self._unknown) > self._most_unknown:
            next(iter(self._unknown)).close()
        try:
            message = await asyncio.wait_for(self._greeting(reader, writer), HELLO_SECONDS)
            self._unknown.pop(writer, None)
            await self._receive(message, reader, writer, via)
        except (OSError, WireError, asyncio.TimeoutError):
            self._remember(writer.get_extra_info("peername"))
        finally:
            self._unknown.pop(writer, None)
            writer.close()

    async def _greeting(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        """The first message.

        Raises:
            WireError: it is not ddpdoctor's: a port scanner, a web browser, a rank of a job that was already started.
        """
        try:
            first = await reader.readexactly(1)
            if first == STORE_QUERY:
                query = await reader.readexactly(9)
                writer.write(query[5:])  # the nonce of the PING: it shows that the job's own ddpdoctor has this port
                await writer.drain()
                return {}
        except asyncio.IncompleteReadError:
            raise WireError("empty message") from None
        if first != b"{":
            raise WireError("not JSON")
        try:
            rest = await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise WireError("incomplete line") from None
        return decode_line(first + rest)

    async def _receive(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, via: str
    ) -> None:
        if not message:
            return
        if message.get("ddpdoctor") != PROTOCOL:
            if message.get("token") == self.token:
                self._remember(writer.get_extra_info("peername"), message)
                self.changed.set()
            await send_message(writer, {"ddpdoctor": PROTOCOL, "kind": "other-version", "host": self.me.node.host})
            return
        if message.get("token") != self.token and not self._lacks_its_script(message):
            self._remember(writer.get_extra_info("peername"), message)
            await send_message(writer, {**self._introduction("other-job"), "token": self.token})
            return
        kind = message.get("kind")
        if kind == "who":
            await send_message(writer, self._introduction("i-am"))
        elif kind == "echo":
            await serve_echo(message, reader, writer, self.me.key)
        elif kind == "hello" and self.is_full and message.get("key") not in self.joined_keys:
            occupant = self._same_number(Member.of(message).node)
            await send_message(writer, {**self._introduction("full"), "node": encode(occupant)})
        elif kind == "hello":
            await self._admit(Member.of(message), reader, writer, via)
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

    async def _admit(
        self, member: Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, via: str
    ) -> None:
        offset = None if member.clock is None else round(member.clock - time.time(), 3)
        waited = round(time.monotonic() - self.opened, 3)
        before = self.connections.get(member.key)
        if before is not None:
            waited = before.member.node.waited_seconds or waited
            before.writer.close()
        node = replace(member.node, came=via, waited_seconds=waited, clock_seconds=offset)
        self.left.pop(node.host, None)
        self.joined_keys.add(member.key)
        connection = self.connections[member.key] = MemberConnection(replace(member, node=node), writer)
        heartbeats = asyncio.create_task(send_heartbeats(writer))
        try:
            await send_message(writer, self._introduction("welcome"))
            self.changed.set()
            while message := await receive_message(reader):
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
                self.left[node.host] = node
                self.changed.set()

    def _take(self, connection: MemberConnection, message: dict[str, Any]) -> None:
        if message.get("kind") == "links":
            connection.links = message
        elif message.get("kind") == "hello":
            update = Member.of(message)
            node = replace(
                update.node,
                came=connection.member.node.came,
                waited_seconds=connection.member.node.waited_seconds,
                clock_seconds=connection.member.node.clock_seconds,
            )
            connection.member = replace(update, node=node)

    def _remember(self, peer: tuple[Any, ...] | None, message: dict[str, Any] | None = None) -> None:
        """Remember a client that is not a node of this job."""
        if peer is None or len(self.strangers) >= MOST_STRANGERS:
            return
        node = (message or {}).get("node")
        if isinstance(node, dict) and isinstance(node.get("host"), str):
            details = {key: node[key][:80] for key in ("script", "rdzv_id") if isinstance(node.get(key), str)}
            number = (message or {}).get("ddpdoctor")
            protocol = number if type(number) is int and number != PROTOCOL else None
            self.strangers[Stranger(node["host"][:80], is_node=protocol is None, protocol=protocol, **details)] = None
        elif message is None:
            self.strangers[Stranger(str(peer[0]).removeprefix("::ffff:"), is_node=False)] = None
