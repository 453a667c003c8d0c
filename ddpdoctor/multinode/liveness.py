"""After the verdict: all stay connected until their ranks have met, so that a node that goes meanwhile is known at once.

A process that is killed closes its connections; one that was stopped says nothing more, although its machine answers; a
machine that is gone answers nothing at all. Whoever is only slow says now and then that it is alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.host import MemberConnection, SessionHost
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import MAX_LINE_BYTES, SILENT_SECONDS, WireError, receive_message
from ddpdoctor.multinode.results import LostNode, NodeEnd
from ddpdoctor.network.aio import connect

__all__ = ["ranks_of", "read_lost_node", "watch_host", "watch_members"]

CHECK_SECONDS = 1.5
"""A SYN that was lost is sent again after one second."""
SUSPECT_SECONDS = 1.9
"""Who says nothing for so long may have been stopped, where it has not been slow before: it says something twice a second."""
SLOW_SECONDS = 1.0
"""Who was silent for longer than this before, and spoke again, is slow: it is given more time."""
SURE_SECONDS = 0.9
"""How much longer somebody whose machine answers must say nothing until it is taken for stopped: all may have stood still."""
SURE_OF_SLOW_SECONDS = 2.0
LOOK_SECONDS = 0.3
MOST_RANKS = 4096


def ranks_of(member: Member, place: Mapping[str, int]) -> LostNode:
    """A node and its ranks, as the others will be told if it is lost; `place` is its part of the job."""
    node = member.node
    first, count = (
        (node.rank, 1) if node.form == Form.ENV else (place.get("first_rank"), min(node.nproc or 0, MOST_RANKS))
    )
    return LostNode(node.host, place.get("node_rank", node.node_rank), first, count)


def read_lost_node(message: object) -> LostNode | None:
    """A node as another one tells of it; None where that cannot be read."""
    try:
        found = decode(LostNode, message)
    except FactsError:
        return None
    return found if (found.first_rank or 0) >= 0 and 0 <= found.count <= MOST_RANKS else None


async def watch_members(host: SessionHost, known: Mapping[str, LostNode], lost: Callable[[LostNode], None]) -> None:
    """Tell `lost`, and every member, which of the members are gone; `known` are all by their keys. Ends when cancelled."""
    watched = {key: (connection, LivenessCheck()) for key, connection in host.connections.items() if key in known}
    while True:
        for key, (connection, check) in list(watched.items()):
            end = (
                NodeEnd.ENDED
                if host.connections.get(key) is not connection
                else await check.look(_peer(connection), connection.last_message_at, connection.slowest)
            )
            if end is not None:
                del watched[key]
                found = replace(known[key], end=end)
                lost(found)
                await host.broadcast({"kind": "lost", "lost": encode(found)})
        await host.change()


async def watch_host(
    reader: asyncio.StreamReader, peer: tuple[str, int], host: LostNode, lost: Callable[[LostNode], None]
) -> None:
    """As a member of the host at `peer`: tell `lost` whom it tells, and of itself when it is gone."""
    check, last_message_at, slowest = LivenessCheck(), time.monotonic(), 0.0
    while True:
        message: dict[str, Any] = {}
        try:
            message = await asyncio.wait_for(receive_message(reader), LOOK_SECONDS)
            end = None if message else NodeEnd.ENDED
            now = time.monotonic()
            last_message_at, slowest = now, max(slowest, now - last_message_at)
        except asyncio.TimeoutError:
            end = await check.look(peer, last_message_at, slowest)
        except (OSError, WireError):
            end = NodeEnd.ENDED
        if end is not None:
            lost(replace(host, end=end))
            return
        found = read_lost_node(message.get("lost")) if message.get("kind") == "lost" else None
        if found is not None:
            lost(found)


@dataclass
class LivenessCheck:
    """Whether somebody who says nothing was stopped, or its machine is gone, or neither."""

    _last: float | None = None
    """When it had last said something, as its silence was looked into."""
    _since: float = 0.0

    async def look(self, peer: tuple[str, int], last_message_at: float, slowest: float) -> NodeEnd | None:
        """What became of the peer, None where nothing did or it is too early to tell.

        Its last message came at `last_message_at`, and it was never silent for longer than `slowest` seconds before. A
        connection to `peer`, a port of its machine, is tried.
        """
        now, is_slow = time.monotonic(), slowest > SLOW_SECONDS
        silent, is_suspected = now - last_message_at, self._last == last_message_at
        sure = SURE_OF_SLOW_SECONDS if is_slow else SURE_SECONDS
        if silent < (SILENT_SECONDS if is_slow else SUSPECT_SECONDS) or (is_suspected and now - self._since < sure):
            return None
        connected = await connect(*peer, CHECK_SECONDS, MAX_LINE_BYTES)
        if connected in (ConnectOutcome.NO_ANSWER, ConnectOutcome.NO_HOST):
            return NodeEnd.SILENT if time.monotonic() - last_message_at >= SILENT_SECONDS else None
        if not isinstance(connected, ConnectOutcome):
            connected[1].close()
        # With any other outcome than these it cannot be told from here: this machine may have lost its network.
        is_up = connected is ConnectOutcome.REFUSED or not isinstance(connected, ConnectOutcome)
        if is_up and is_suspected:
            return NodeEnd.STOPPED
        self._last, self._since = last_message_at, now
        return None


def _peer(connection: MemberConnection) -> tuple[str, int]:
    """A port of a member's machine at which a connection was made before."""
    return str((connection.writer.get_extra_info("peername") or ("",))[0]), connection.member.echo_port
