"""What comes of a meeting, for the host, for its guests, and for a node that met nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ddpdoctor.facts.nodes import Link, Node, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.members import Guest

__all__ = ["Alone", "End", "Gathered", "Judge", "Lost", "Told"]


@dataclass(frozen=True)
class Gathered:
    """What the host knows when the meeting is over; judging is not done here.

    `guests` are in the order of their numbers. `missing` and `lacking` say who never came, by number and by count.
    """

    guests: tuple[Guest, ...]
    links: tuple[Link, ...]
    expected: int
    missing: tuple[int, ...]
    lacking: int
    waited_seconds: float
    hosted_by: int
    is_main: bool
    strangers: tuple[Stranger, ...]
    silent: tuple[int, ...] = ()
    """Those of the guests that answered no more when the network was tried."""
    left: tuple[Node, ...] = ()
    """Nodes that came and went away again."""
    gone: tuple[Guest, ...] = ()
    """Nodes that gave up before they had come, and said why."""


Judge = Callable[[Gathered], "asyncio.Future[dict[str, Any]]"]


@dataclass(frozen=True)
class Told:
    """What the host made of it."""

    verdict: dict[str, Any]


@dataclass(frozen=True)
class Alone:
    """Nobody was met. `way` is what became of the way to the job's address and port; see Visitor for the rest."""

    me: Guest
    way: ConnectOutcome | None
    waited_seconds: float
    other_job: dict[str, Any] | None = None
    other_version: Stranger | None = None
    """The host, where its ddpdoctor speaks another protocol."""
    taken_by: Node | None = None
    """The job is complete without this node: the one that has its place."""
    lost_host: str | None = None


class End(str, Enum):
    """What became of a node."""

    ENDED = "ended"
    """Its process did."""
    STOPPED = "stopped"
    """It says nothing, and its machine answers."""
    SILENT = "silent"
    """Its machine answers nothing either."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A node that went after the verdict and before its ranks had met the others; they are `count` from `first_rank` on."""

    host: str
    node_rank: int | None
    first_rank: int | None
    count: int
    end: End = End.ENDED
