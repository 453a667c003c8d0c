"""Meetings of several nodes inside one test, on the loopback."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from ddpdoctor.facts.nodes import Node
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.results import NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.multinode.session import MemberSession
from ddpdoctor.network.connect import listen

TOKEN = f"job of {os.getpid()}"
"""Tests that run side by side share the side doors of the loopback."""

Met = SessionResult | ReceivedVerdict | NotJoined | None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def node(rank: int, port: int, nnodes: int = 2, **more: Any) -> Node:
    """A node of a static launch that meets on this machine's loopback."""
    return Node(
        f"host{rank}",
        machine=f"machine{rank}",
        node_rank=rank,
        nnodes=nnodes,
        least=nnodes,
        owns=rank == 0,
        master_addr="127.0.0.1",
        master_port=port,
        addresses=("127.0.0.1",),
        **more,
    )


async def attend(
    told: Node,
    *,
    token: str = TOKEN,
    seconds: float = 10.0,
    key: str = "",
    errors: tuple[Any, ...] = (),
    proves: Authentication | None = None,
) -> Met:
    """One node's meeting: what it gathered as the host, or what it was told."""
    found: list[SessionResult] = []

    def judge(gathered: SessionResult) -> asyncio.Future[dict[str, Any]]:
        found.append(gathered)
        verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        verdict.set_result({"ddpdoctor": 1, "kind": "verdict", "findings": [], "count": len(gathered.members)})
        return verdict

    main = listen(told.master_port or 0) if told.owns else None
    session = MemberSession(Member(key or told.host, told, errors), token, seconds, frozenset({"127.0.0.1"}), main)
    session.authentication = proves or Authentication()
    met = await session.run(judge)
    return met if met is not None else found[0]


def meet(*visits: Any) -> list[Any]:
    """Several of them at once; their results in this order."""

    async def together() -> list[Any]:
        return list(await asyncio.gather(*visits))

    return asyncio.run(together())
