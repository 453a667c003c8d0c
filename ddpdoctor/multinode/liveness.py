"""After the verdict: all nodes stay connected until their ranks have joined, so that a lost node is noticed at once.

A killed process closes its connections; a suspended one sends nothing, although its machine responds; a machine that is
gone does not respond at all. A slow process still sends heartbeats now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.channel import READ_BYTES, NodeConnection
from ddpdoctor.multinode.host import MemberConnection, SessionHost
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import SILENT_SECONDS, WireError
from ddpdoctor.multinode.results import LostNode, NodeEnd
from ddpdoctor.network.aio import connect

__all__ = ["ranks_of", "read_lost_node", "watch_host", "watch_members"]

CHECK_SECONDS = 1.5
"""Long enough for a lost SYN, which the kernel retransmits after 1 s."""
SUSPECT_SECONDS = 1.9
"""A node that was not slow before is suspected after this silence: heartbeats are sent twice per second."""
SLOW_SECONDS = 1.0
"""A node that was silent for longer than this and then sent something is slow, and gets more time."""
SURE_SECONDS = 0.9
"""How much longer a suspected node must be silent to count as suspended, because this process may have been delayed too."""
SURE_OF_SLOW_SECONDS = 2.0
LOOK_SECONDS = 0.3
MOST_RANKS = 4096


def ranks_of(member: Member, place: Mapping[str, int]) -> LostNode:
    """A node and its ranks, as it is reported if it is lost; `place` is its part of the job."""
    node = member.node
    first, count = (
        (node.rank, 1) if node.form == Form.ENV else (place.get("first_rank"), min(node.nproc or 0, MOST_RANKS))
    )
    return LostNode(node.host, place.get("node_rank", node.node_rank), first, count)


def read_lost_node(message: object) -> LostNode | None:
    """A node from a message; None if it is malformed."""
    try:
        node = decode(LostNode, message)
    except FactsError:
        return None
    return node if (node.first_rank or 0) >= 0 and 0 <= node.count <= MOST_RANKS else None


async def watch_members(host: SessionHost, known: Mapping[str, LostNode], lost: Callable[[LostNode], None]) -> None:
    """Report lost members to `lost` and to every member; `known` are all members by their keys. Runs until cancelled."""
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
                node = replace(known[key], end=end)
                lost(node)
                await host.broadcast({"kind": "lost", "lost": encode(node)})
        await host.change()


async def watch_host(
    channel: NodeConnection, peer: tuple[str, int], host: LostNode, lost: Callable[[LostNode], None]
) -> None:
    """As a member of the host at `peer`: report to `lost` the nodes that the host reports, and the host itself if it is lost."""
    check, last_message_at, slowest = LivenessCheck(), time.monotonic(), 0.0
    while True:
        message: dict[str, Any] = {}
        try:
            message = await asyncio.wait_for(channel.receive(), LOOK_SECONDS)
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
        node = read_lost_node(message.get("lost")) if message.get("kind") == "lost" else None
        if node is not None:
            lost(node)


@dataclass
class LivenessCheck:
    """Decides whether a silent peer was suspended, its machine is gone, or neither."""

    _last: float | None = None
    """The time of its last message when it was first suspected."""
    _since: float = 0.0

    async def look(self, peer: tuple[str, int], last_message_at: float, slowest: float) -> NodeEnd | None:
        """How the peer ended, None if it did not or it is too early to decide.

        Its last message arrived at `last_message_at`, and it was never silent for longer than `slowest` seconds before. The
        check connects to `peer`, a port of its machine.
        """
        now, is_slow = time.monotonic(), slowest > SLOW_SECONDS
        silent, is_suspected = now - last_message_at, self._last == last_message_at
        sure = SURE_OF_SLOW_SECONDS if is_slow else SURE_SECONDS
        if silent < (SILENT_SECONDS if is_slow else SUSPECT_SECONDS) or (is_suspected and now - self._since < sure):
            return None
        connected = await connect(*peer, CHECK_SECONDS, READ_BYTES)
        if connected in (ConnectOutcome.NO_ANSWER, ConnectOutcome.NO_HOST):
            return NodeEnd.SILENT if time.monotonic() - last_message_at >= SILENT_SECONDS else None
        if not isinstance(connected, ConnectOutcome):
            connected[1].close()
        # Any other outcome is not conclusive: this machine may have lost its own network.
        is_up = connected is ConnectOutcome.REFUSED or not isinstance(connected, ConnectOutcome)
        if is_up and is_suspected:
            return NodeEnd.STOPPED
        self._last, self._since = last_message_at, now
        return None


def _peer(connection: MemberConnection) -> tuple[str, int]:
    """The address of a member and its echo port."""
    return str((connection.channel.writer.get_extra_info("peername") or ("",))[0]), connection.member.echo_port
