"""The results of a session: for the host, for its members, and for a node that found no other node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any

from ddpdoctor.facts.nodes import Node, NodeLink, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.members import Member

__all__ = ["Judge", "LostNode", "NodeEnd", "NotJoined", "ReceivedVerdict", "SessionResult"]


@dataclass(frozen=True)
class SessionResult:
    """What the host knows at the end of the session, not judged yet.

    `members` are in the order of their numbers. `missing` and `lacking` are the nodes that did not join in time, by number and
    count; `absent` and `absent_count` those that had not joined at its end, which may be early because of an error.
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
    """Members that stopped responding during the link tests."""
    left: tuple[Node, ...] = ()
    """Nodes that joined and left again."""
    absent: tuple[int, ...] = ()
    absent_count: int = 0
    gone: tuple[Member, ...] = ()
    """Nodes that gave up before they joined, and reported why."""


Judge = Callable[[SessionResult], "asyncio.Future[dict[str, Any]]"]


@dataclass(frozen=True)
class ReceivedVerdict:
    """The verdict that the host sent."""

    verdict: dict[str, Any]


@dataclass(frozen=True)
class NotJoined:
    """No other node was found. `way` is the outcome at the job's address and port; see MemberClient for the rest."""

    me: Member
    way: ConnectOutcome | None
    waited_seconds: float
    other_job: dict[str, Any] | None = None
    refused_by: Stranger | None = None
    """The host, if its ddpdoctor has another protocol version, or proves something else than this node."""
    taken_by: Node | None = None
    """The node that has this node's place in a complete job."""
    lost_host: str | None = None


class NodeEnd(str, Enum):
    """How a node was lost."""

    ENDED = "ended"
    """Its process ended."""
    STOPPED = "stopped"
    """It is silent, but its machine responds."""
    SILENT = "silent"
    """Its machine does not respond either."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that was lost after the verdict, before its `count` ranks from `first_rank` on had joined."""

    host: str
    node_rank: int | None
    first_rank: int | None
    count: int
    end: NodeEnd = NodeEnd.ENDED
