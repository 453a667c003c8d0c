"""The side that connects: a guest at another node's meeting, from its hello to the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.nodes import Node, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.link_plan import told_links, try_links
from ddpdoctor.multinode.liveness import lost_of, watch_host
from ddpdoctor.multinode.members import Guest
from ddpdoctor.multinode.messages import MAX_LINE_BYTES, PROTOCOL, SILENT_SECONDS, WireError, beat, hear, say
from ddpdoctor.multinode.results import Lost
from ddpdoctor.network.aio import connect
from ddpdoctor.network.tcp_info import lost_packets

__all__ = ["SILENT", "Visitor"]

ASK_SECONDS = 1.0
SILENT = "silent"


@dataclass
class Visitor:
    """What a guest has seen. `came` is called when it was let in, with the seconds that its host still waits.

    `other_job` is how another job's node introduced itself at our port, `lost_host` a host that went before its verdict,
    `taken_by` the node that has our place in a job that is complete without us. `lost` is called with nodes that go after
    the verdict.
    """

    token: str
    came: Callable[[float], None]
    told: Callable[[dict[str, Any]], None]
    speak: Callable[[str], None]
    lost: Callable[[Lost], None] = lambda lost: None
    is_lossy: bool = False
    """Somebody was there, and what was said was lost on the way: it may arrive when it is said again."""
    is_over: bool = False
    """The verdict was told."""
    seat: str | None = None
    """The address of the host whose guest this node is."""
    other_job: dict[str, Any] | None = None
    other_since: float | None = None
    other_version: Stranger | None = None
    taken_by: Node | None = None
    lost_host: str | None = None

    @property
    def is_seated(self) -> bool:
        return self.seat is not None

    async def ask(self, address: str, port: int) -> dict[str, Any]:
        """Who is there; {} when it is no ddpdoctor, the kind SILENT when somebody lets us in and says nothing."""
        connected = await connect(address, port, ASK_SECONDS, MAX_LINE_BYTES)
        if isinstance(connected, ConnectOutcome):
            return {}
        reader, writer = connected
        try:
            await say(writer, {"ddpdoctor": PROTOCOL, "kind": "who", "token": self.token})
            return await asyncio.wait_for(hear(reader), ASK_SECONDS)
        except asyncio.TimeoutError:
            return {"kind": SILENT}
        except (OSError, WireError):
            return {}
        finally:
            writer.close()

    async def visit(
        self, me: Guest, address: str, port: int, way: ConnectOutcome | None, patience: float
    ) -> ConnectOutcome | None:
        """Be a guest until the verdict, or until the host goes. None when there was a host, else what was there instead.

        `way` is why the guest comes by the side door; `patience` is for each of connecting and being let in, in seconds.
        """
        connected = await connect(address, port, patience, MAX_LINE_BYTES)
        if isinstance(connected, ConnectOutcome):
            return connected
        reader, writer = connected
        try:
            guest = replace(me, clock=time.time(), node=replace(me.node, way=way))
            await say(writer, guest.hello(self.token))
            refusal = self._refusal(me, await asyncio.wait_for(hear(reader), patience), address)
            if refusal is not None:
                return refusal
            beating = asyncio.create_task(beat(writer))
            try:
                await self._stay(reader, writer, (address, port))
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            return None
        except asyncio.TimeoutError:
            self.is_lossy = bool(lost_packets(writer.get_extra_info("socket")))
            return None if self.is_seated else ConnectOutcome.NO_ANSWER if self.is_lossy else ConnectOutcome.SILENT
        except (OSError, WireError):
            return None if self.is_seated else ConnectOutcome.STRANGER
        finally:
            self.seat = None
            writer.close()

    def _refusal(self, me: Guest, welcome: dict[str, Any], address: str) -> ConnectOutcome | None:
        kind, seconds = welcome.get("kind"), welcome.get("seconds")
        if kind == "other-job":
            self.other_since = self.other_since or time.monotonic()
            self.other_job = welcome
        if kind == "full":
            self.taken_by = _node(welcome.get("node"))
        if kind == "other-version":
            self.other_version = _other_version(welcome, address)
        if kind != "welcome" or welcome.get("key") == me.key or not isinstance(seconds, (int, float)):
            return ConnectOutcome.STRANGER
        self.seat, self.other_job, self.other_since, self.other_version = address, None, None, None
        self.lost_host = str(welcome.get("host"))[:60]
        self.came(min(max(float(seconds), 0.0), 1e6))
        return None

    async def _stay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: tuple[str, int]) -> None:
        """Do what the host asks, until its verdict; then watch it where it wants to be watched.

        Raises:
            OSError: the connection broke.
            WireError: the host does not keep to the protocol.
            asyncio.TimeoutError: the host was stopped.
        """
        place: dict[str, Any] | None = None
        while message := await self._hear(reader, writer):
            kind = message.get("kind")
            if kind == "progress":
                self.speak(str(message.get("words"))[:300])
            elif kind == "test":
                links = await try_links(message, self.token)
                await say(writer, told_links(links))
            elif kind == "place":
                place = message
            elif kind == "verdict":
                self.lost_host, self.is_over = None, True
                self.told({**message, "place": place})
                watched = lost_of(message.get("watch"))
                if watched is not None:
                    await watch_host(reader, host, watched, self.lost)
                return

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        """The next message of a host that says at least that it is alive; where the way loses packets, it may be late.

        Raises:
            OSError, WireError, asyncio.TimeoutError: as `_stay`.
        """
        try:
            return await asyncio.wait_for(hear(reader), SILENT_SECONDS)
        except asyncio.TimeoutError:
            self.is_lossy = bool(lost_packets(writer.get_extra_info("socket")))
            if not self.is_lossy:
                raise
        return await asyncio.wait_for(hear(reader), 2 * SILENT_SECONDS)


def _other_version(told: dict[str, Any], address: str) -> Stranger:
    host, protocol = told.get("host"), told.get("ddpdoctor")
    name = host[:80] if isinstance(host, str) and host else address
    return Stranger(name, is_node=False, protocol=protocol if type(protocol) is int else 0)


def _node(told: object) -> Node | None:
    try:
        return decode(Node, told)
    except FactsError:
        return None
