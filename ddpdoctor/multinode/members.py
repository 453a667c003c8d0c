"""The members of a session, and whether they are complete: pure, so that tests can try every combination of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.messages import PROTOCOL, WireError

__all__ = [
    "Member",
    "SessionState",
    "assess",
    "contradicts",
    "departed_member",
    "expected",
    "lacks_its_script",
    "membership_text",
    "missing",
    "of_another_job",
    "ordered",
    "still_gone",
]


SAME_FOR_ALL = ("form", "nnodes", "world_size", "master_port", "rdzv_id")
"""Settings that are equal on all nodes of one job."""


@dataclass(frozen=True)
class Member:
    """One node of the session, from its hello.

    `key` is its random id in this session. `errors` are its own findings of severity error, as JSON. `line` is its launch
    line: words, variables, folder. `echo_port` serves link tests; `has_main`: it listens on the job's port.
    """

    key: str
    node: Node
    errors: tuple[dict[str, Any], ...] = ()
    line: dict[str, Any] = field(default_factory=dict)
    echo_port: int = 0
    has_main: bool = False
    clock: float | None = None

    def hello(self, token: str) -> dict[str, Any]:
        """The first message."""
        return {
            "ddpdoctor": PROTOCOL,
            "kind": "hello",
            "token": token,
            "key": self.key,
            "node": encode(self.node),
            "errors": list(self.errors),
            "line": self.line,
            "echo_port": self.echo_port,
            "has_main": self.has_main,
            "clock": self.clock,
        }

    @classmethod
    def of(cls, message: dict[str, Any]) -> Member:
        """A member from its hello.

        Raises:
            WireError: the message is not what a node of this version sends.
        """
        key, errors, line = message.get("key"), message.get("errors"), message.get("line")
        port, clock = message.get("echo_port"), message.get("clock")
        is_well = (
            isinstance(key, str)
            and 0 < len(key) <= 64
            and isinstance(errors, list)
            and all(isinstance(error, dict) for error in errors)
            and isinstance(line, dict)
            and type(port) is int
            and 0 <= port < 65536
            and (clock is None or type(clock) is float)
        )
        if not is_well:
            raise WireError("not a hello message")
        assert isinstance(key, str)
        assert isinstance(errors, list)
        assert isinstance(line, dict)
        try:
            node = decode(Node, message.get("node"))
        except FactsError as error:
            raise WireError(str(error)) from None
        return cls(key, node, tuple(errors), line, port or 0, message.get("has_main") is True, clock)


def departed_member(message: dict[str, Any], host: Node) -> Member:
    """A node that gave up, from its leave message, in the job of `host`."""
    number, errors = message.get("number"), message.get("errors")
    is_rank, is_number = host.form == Form.ENV, type(number) is int
    node = Node(
        str(message.get("host"))[:60],
        host.form,
        node_rank=number if is_number and not is_rank else None,
        rank=number if is_number and is_rank else None,
    )
    return Member(
        str(message.get("key"))[:64],
        node,
        tuple(e for e in errors if isinstance(e, dict)) if isinstance(errors, list) else (),
    )


class SessionState(Enum):
    """What the host of the session should do."""

    WAITING = "waiting"
    ENOUGH = "enough"
    """An elastic job has its minimum number of nodes; more may join."""
    CONTRADICTING = "contradicting"
    """The nodes contradict each other: nodes that join soon may still show which one is wrong."""
    COMPLETE = "complete"


def expected(nodes: Sequence[Node]) -> int:
    """How many nodes (ranks in form env) the job has, according to most of them; the larger number on a tie."""
    sizes = Counter(size for size in map(_size, nodes) if size)
    return max(sizes, key=lambda size: (sizes[size], size), default=1)


def missing(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The node_ranks (ranks in form env) that have not joined. Empty if nodes have no numbers, as with c10d."""
    numbers = {_number(node) for node in nodes}
    if None in numbers:
        return ()
    return tuple(number for number in range(expected(nodes)) if number not in numbers)


def still_gone(gone: Iterable[Member], members: Sequence[Member]) -> list[Member]:
    """Nodes that gave up and whose place is still empty, without those that were restarted and joined."""
    nodes = [member.node for member in members]
    empty = missing(nodes)
    absent = [member for member in gone if (number := _number(member.node)) is None or number in empty]
    return absent[: max(expected(nodes) - len(nodes), 0)]


def contradicts(members: Sequence[Member]) -> bool:
    """Whether the members' settings cannot belong to one working job."""
    nodes = [member.node for member in members]
    numbers = Counter(n for n in map(_number, nodes) if n is not None)
    size = expected(nodes)
    return (
        any(member.errors for member in members)
        or any(node.way is not None for node in nodes)
        or any(count > 1 for count in numbers.values())
        or any(number >= size for number in numbers)
        or len({_size(node) for node in nodes}) > 1
        or len({node.form for node in nodes}) > 1
        or len({node.master_port for node in nodes}) > 1
        or len({node.rdzv_id for node in nodes}) > 1
        or (len(nodes) >= size and not any(node.owns for node in nodes))
        or len(nodes) > size
        or len({node.machine or node.host for node in nodes if node.owns}) > 1
    )


def assess(members: Sequence[Member]) -> SessionState:
    """The state of the session with these members."""
    nodes = [member.node for member in members]
    sizes = [size for node in nodes if (size := _size(node))]
    if not sizes:
        return SessionState.WAITING  # for a node that knows how many there are
    most = max(sizes)
    if len(nodes) >= most and not missing(nodes):
        return SessionState.COMPLETE
    if contradicts(members):
        placed = [
            number for number in map(_number, nodes) if number is None or number < most
        ]  # others do not take a place
        return SessionState.CONTRADICTING if len(placed) < most else SessionState.COMPLETE
    least = max((node.least for node in nodes if node.least), default=most)
    return SessionState.ENOUGH if len(nodes) >= least else SessionState.WAITING


def of_another_job(members: Sequence[Member], port: int | None) -> frozenset[str]:
    """The keys of members with another port than `port`, if the job is complete without them: they may belong to another
    job with the same script, and should search for it.
    """
    same = [member for member in members if member.node.master_port == port]
    if len(same) == len(members) or assess(same) is not SessionState.COMPLETE or contradicts(same):
        return frozenset()
    return frozenset(member.key for member in members) - {member.key for member in same}


def lacks_its_script(node: Node, members: Sequence[Member]) -> bool:
    """Whether a node that names another script may still be part of this job: its script or that of the others is missing
    (a typo), its other settings are the same, and its place is empty.
    """
    first, number, nodes = members[0].node, _number(node), [member.node for member in members]
    is_alike = all(getattr(node, word) == getattr(first, word) for word in SAME_FOR_ALL)
    is_empty = len(nodes) < expected(nodes) and (number is None or number in missing(nodes))
    return is_alike and is_empty and "" in (node.script_hash, first.script_hash)


def membership_text(members: Sequence[Member]) -> str:
    """Which nodes joined and which are missing, as text."""
    nodes = [member.node for member in members]
    size, absent = expected(nodes), missing(nodes)
    unit = "rank" if nodes[0].form == Form.ENV else "node"
    here = ", ".join(node.host for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    text = f"{len(nodes)} of {size} {unit}{'' if size == 1 else 's'} joined ({here})"
    if len(nodes) < size:
        awaited = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
        text += f"; waiting for {unit} {awaited}" if awaited else f"; waiting for {size - len(nodes)} more"
    return text


def ordered(members: Sequence[Member]) -> list[Member]:
    """By number; without numbers, the node that hosts the store first, then in the order of joining."""

    def key(member: Member) -> tuple[int, float]:
        number = _number(member.node)
        return (number if number is not None else 0 if member.node.owns else 1, member.node.waited_seconds or 0.0)

    return sorted(members, key=key)


def _size(node: Node) -> int | None:
    return node.world_size if node.form == Form.ENV else node.nnodes


def _number(node: Node) -> int | None:
    return node.rank if node.form == Form.ENV else node.node_rank
