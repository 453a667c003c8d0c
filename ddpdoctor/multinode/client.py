"""The connecting side: a member of another node's session, from its hello to the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.nodes import Node, Proves, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.authentication import Authentication, NotProvenError, OtherAnswer
from ddpdoctor.multinode.channel import READ_BYTES, NodeConnection, send_heartbeats
from ddpdoctor.multinode.link_plan import encode_links, try_links
from ddpdoctor.multinode.liveness import read_lost_node, watch_host
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import MAX_HELLO_BYTES, PROTOCOL, SILENT_SECONDS, WireError
from ddpdoctor.multinode.results import LostNode
from ddpdoctor.network.aio import connect
from ddpdoctor.network.tcp_info import lost_packets

__all__ = ["SILENT", "MemberClient"]

IDENTIFY_SECONDS = 1.0
SILENT = "silent"


@dataclass
class MemberClient:
    """The state of a member. `on_joined` is called when it was admitted, with the seconds that its host still waits.

    `other_job` is the identity of another job's node at this port, `lost_host` a host that disappeared before its verdict,
    `taken_by` the node that has this node's place in a complete job, `other_proof` a host that does not prove the same as this
    node. `on_lost` is called with nodes that disappear after
    the verdict.
    """

    token: str
    on_joined: Callable[[float], None]
    on_verdict: Callable[[dict[str, Any]], None]
    on_progress: Callable[[str], None]
    on_lost: Callable[[LostNode], None] = lambda lost: None
    is_lossy: bool = False
    """A host accepted the connection, but packets were lost: a retry may succeed."""
    is_over: bool = False
    """The verdict was received."""
    host_address: str | None = None
    """The address of the host that this node has joined."""
    other_job: dict[str, Any] | None = None
    other_since: float | None = None
    other_version: Stranger | None = None
    taken_by: Node | None = None
    lost_host: str | None = None
    authentication: Authentication = field(default_factory=Authentication)
    other_proof: Stranger | None = None

    @property
    def is_member(self) -> bool:
        return self.host_address is not None

    async def identify(self, address: str, port: int) -> dict[str, Any]:
        """The identity of the server; {} if it is not ddpdoctor, the kind SILENT if it accepts but does not answer."""
        connected = await connect(address, port, IDENTIFY_SECONDS, READ_BYTES)
        if isinstance(connected, ConnectOutcome):
            return {}
        channel = NodeConnection(*connected, most=MAX_HELLO_BYTES)
        try:
            identity = await asyncio.wait_for(self._identity(channel), IDENTIFY_SECONDS)
            self._note_refusal(identity, address)
            return identity
        except asyncio.TimeoutError:
            return {"kind": SILENT}
        except NotProvenError as error:
            self._refused_at(address, error.host, error.proves)
            return {}
        except (OSError, WireError):
            return {}
        finally:
            channel.writer.close()

    async def _identity(self, channel: NodeConnection) -> dict[str, Any]:
        try:
            await self.authentication.prove_to_host(channel, self.token)
        except OtherAnswer as answer:
            return answer.message
        host = self.authentication.node.get("host")
        await channel.send({"ddpdoctor": PROTOCOL, "kind": "who", "token": self.token, "host": host})
        return await channel.receive()

    def _note_refusal(self, message: dict[str, Any], address: str) -> None:
        """Remember a host that needs a proof which this node does not have."""
        if message.get("kind") == "no-proof":
            host, proves = message.get("host"), message.get("proves")
            name = host[:80] if isinstance(host, str) else ""
            self._refused_at(address, name, proves if proves in Proves.ALL else Proves.OTHER)

    def _refused_at(self, address: str, host: str, proves: str) -> None:
        """A host does not prove the same as this node."""
        self.other_since = self.other_since or time.monotonic()
        self.other_proof = Stranger(host or address, is_node=False, proves=proves, address=address)

    async def join(
        self, me: Member, address: str, port: int, way: ConnectOutcome | None, patience: float
    ) -> ConnectOutcome | None:
        """Join and stay until the verdict, or until the host disappears. None if there was a host, else what was there instead.

        `way` is why the member uses the side port; `patience` is the timeout of connecting and of being admitted, in seconds.
        """
        connected = await connect(address, port, patience, READ_BYTES)
        if isinstance(connected, ConnectOutcome):
            return connected
        channel, writer = NodeConnection(*connected), connected[1]
        try:
            member = replace(me, clock=time.time(), node=replace(me.node, way=way))
            welcome = await asyncio.wait_for(self._welcome(channel, member), patience)
            refusal = self._refusal(me, welcome, address)
            if refusal is not None:
                return refusal
            heartbeats = asyncio.create_task(send_heartbeats(channel))
            try:
                await self._stay(channel, (address, port))
            finally:
                heartbeats.cancel()
                await asyncio.gather(heartbeats, return_exceptions=True)
            return None
        except asyncio.TimeoutError:
            self.is_lossy = bool(lost_packets(writer.get_extra_info("socket")))
            return None if self.is_member else ConnectOutcome.NO_ANSWER if self.is_lossy else ConnectOutcome.SILENT
        except NotProvenError as error:
            self._refused_at(address, error.host, error.proves)
            return ConnectOutcome.STRANGER
        except (OSError, WireError):
            return None if self.is_member else ConnectOutcome.STRANGER
        finally:
            self.host_address = None
            writer.close()

    async def _welcome(self, channel: NodeConnection, member: Member) -> dict[str, Any]:
        """The host's answer to this node's hello."""
        try:
            await self.authentication.prove_to_host(channel, self.token)
        except OtherAnswer as answer:
            return answer.message
        await channel.send(member.hello(self.token))
        return await channel.receive()

    def _refusal(self, me: Member, welcome: dict[str, Any], address: str) -> ConnectOutcome | None:
        kind, seconds = welcome.get("kind"), welcome.get("seconds")
        self._note_refusal(welcome, address)
        if kind == "other-job":
            self.other_since = self.other_since or time.monotonic()
            self.other_job = welcome
        if kind == "full":
            self.taken_by = _node(welcome.get("node"))
        if kind == "other-version":
            self.other_version = _other_version(welcome, address)
        if kind != "welcome" or welcome.get("key") == me.key or not isinstance(seconds, (int, float)):
            return ConnectOutcome.STRANGER
        self.host_address, self.other_job, self.other_since, self.other_version = address, None, None, None
        self.other_proof = None
        self.lost_host = str(welcome.get("host"))[:60]
        self.on_joined(min(max(float(seconds), 0.0), 1e6))
        return None

    async def _stay(self, channel: NodeConnection, host: tuple[str, int]) -> None:
        """Serve the host's requests until its verdict; then watch the host if it asks for that.

        Raises:
            OSError: the connection was lost.
            WireError: the host violated the protocol.
            asyncio.TimeoutError: the host was suspended.
        """
        place: dict[str, Any] | None = None
        while message := await self._receive(channel):
            kind = message.get("kind")
            if kind == "progress":
                self.on_progress(str(message.get("words"))[:300])
            elif kind == "test":
                links = await try_links(message, self.token, self.authentication)
                await channel.send(encode_links(links))
            elif kind == "place":
                place = message
            elif kind == "verdict":
                self.lost_host, self.is_over = None, True
                self.on_verdict({**message, "place": place})
                watched = read_lost_node(message.get("watch"))
                if watched is not None:
                    await watch_host(channel, host, watched, self.on_lost)
                return

    async def _receive(self, channel: NodeConnection) -> dict[str, Any]:
        """The next message of the host, which sends heartbeats; if packets are lost, it may be late.

        Raises:
            OSError, WireError, asyncio.TimeoutError: as `_stay`.
        """
        try:
            return await asyncio.wait_for(channel.receive(), SILENT_SECONDS)
        except asyncio.TimeoutError:
            self.is_lossy = bool(lost_packets(channel.writer.get_extra_info("socket")))
            if not self.is_lossy:
                raise
        return await asyncio.wait_for(channel.receive(), 2 * SILENT_SECONDS)


def _other_version(message: dict[str, Any], address: str) -> Stranger:
    host, protocol = message.get("host"), message.get("ddpdoctor")
    name = host[:80] if isinstance(host, str) and host else address
    return Stranger(name, is_node=False, protocol=protocol if type(protocol) is int else 0)


def _node(message: object) -> Node | None:
    try:
        return decode(Node, message)
    except FactsError:
        return None
