"""The host makes every node test the network to its partners, all in parallel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ddpdoctor.facts.nodes import NodeLink
from ddpdoctor.multinode.host import MemberConnection, SessionHost
from ddpdoctor.multinode.link_plan import orders, read_links, try_links
from ddpdoctor.multinode.link_tests import TEST_SECONDS
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import encode_line

__all__ = ["is_silent", "survey"]


async def survey(host: SessionHost, members: Sequence[Member]) -> tuple[NodeLink, ...]:
    """The links between the host and its members, without waiting for members that leave meanwhile."""
    wanted = orders(members)
    connections = [host.connections[member.key] for member in members if member.key in host.connections]
    for connection in connections:
        connection.links = None
    await asyncio.gather(
        *(host.send_to(connection, encode_line(wanted[connection.member.key])) for connection in connections)
    )
    links = await try_links(wanted[host.me.key], host.token, host.authentication)
    end = time.monotonic() + 2 * TEST_SECONDS
    while any(_is_awaited(host, connection) for connection in connections) and time.monotonic() < end:
        await host.change()
    index = {member.key: at for at, member in enumerate(members)}
    for connection in connections:
        links += read_links(connection.links or {}, index[connection.member.key], len(members))
    return tuple(links)


def is_silent(host: SessionHost, member: Member) -> bool:
    """Whether a member sent no link results and no heartbeats either."""
    connection = host.connections.get(member.key)
    return connection is not None and connection.links is None and connection.is_silent


def _is_awaited(host: SessionHost, connection: MemberConnection) -> bool:
    return (
        connection.links is None
        and not connection.is_silent
        and host.connections.get(connection.member.key) is connection
    )
