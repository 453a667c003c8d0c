"""What comes of a session, for the host, for its members, and for a node that met nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ddpdoctor.facts.nodes import Node, NodeLink, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.members import Member

__all__ = ["Judge", "LostNode", "NodeEnd", "NotJoined", "ReceivedVerdict", "SessionResult"]


@dataclass(frozen=True)
class SessionResult:
    """What the host knows when the session is over; judging is not done here.

    `members` are in the order of their numbers. `missing` and `lacking` say who did not join in the whole time, by number and
    by count; `absent` and `absent_count` who had not joined when it ended, which an error may have done early.
    """

    members: tuple[Member, ...]
    links: tuple[NodeLink, ...]
    expected: int
    missing: tuple[int, ...]
    lacking: int
    waited_seconds: float
    hosted_by: int
    is_main: bool
    strangers: tuple[Stranger, ...]
    silent: tuple[int, ...] = ()
    """Those of the members that answered no more when the network was tried."""
    left: tuple[Node, ...] = ()
    """Nodes that came and went away again."""
    absent: tuple[int, ...] = ()
    absent_count: int = 0
    gone: tuple[Member, ...] = ()
    """Nodes that gave up before they had come, and said why."""


Judge = Callable[[SessionResult], "asyncio.Future[dict[str, Any]]"]


@dataclass(frozen=True)
class ReceivedVerdict:
    """What the host made of it."""

    verdict: dict[str, Any]


@dataclass(frozen=True)
class NotJoined:
    """Nobody was met. `way` is what became of the way to the job's address and port; see MemberClient for the rest."""

    me: Member
    way: ConnectOutcome | None
    waited_seconds: float
    other_job: dict[str, Any] | None = None
    other_version: Stranger | None = None
    """The host, where its ddpdoctor speaks another protocol."""
    taken_by: Node | None = None
    """The job is complete without this node: the one that has its place."""
    lost_host: str | None = None


class NodeEnd(str, Enum):
    """What became of a node."""

    ENDED = "ended"
    """Its process did."""
    STOPPED = "stopped"
    """It says nothing, and its machine answers."""
    SILENT = "silent"
    """Its machine answers nothing either."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that went after the verdict and before its ranks had met the others; they are `count` from `first_rank` on."""

    host: str
    node_rank: int | None
    first_rank: int | None
    count: int
    end: NodeEnd = NodeEnd.ENDED
