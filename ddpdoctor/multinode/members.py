"""Who is here, and whether that is enough: pure, so that every mixture of nodes can be tried in a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.multinode.messages import PROTOCOL, WireError

__all__ = [
    "Guest",
    "State",
    "assess",
    "contradicts",
    "expected",
    "gone_of",
    "lacks_its_script",
    "missing",
    "of_another_job",
    "ordered",
    "roll",
    "still_gone",
]


TOLD_ALIKE = ("form", "nnodes", "world_size", "master_port", "rdzv_id")
"""What all nodes of one job are told."""


@dataclass(frozen=True)
class Guest:
    """One node at the meeting, as it says hello.

    `key` is its own number for this meeting. `errors` are its own findings of severity error, as JSON. `line` is its launch
    line: the words, the variables, the folder. `echo_port` answers network tests; `has_main`: it listens at the job's port.
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
    def of(cls, message: dict[str, Any]) -> Guest:
        """A guest from its hello.

        Raises:
            WireError: the message is not what a node of this version sends.
        """
        key, errors, line = message.get("key"), message.get("errors"), message.get("line")
        port, clock = message.get("echo_port"), message.get("clock")
        is_well = (
            isinstance(key, str)
            and 0 < len(key) <= 64
            and isinstance(errors, list)
            and all(isinstance(each, dict) for each in errors)
            and isinstance(line, dict)
            and type(port) is int
            and 0 <= port < 65536
            and (clock is None or type(clock) is float)
        )
        if not is_well:
            raise WireError("no hello")
        assert isinstance(key, str)
        assert isinstance(errors, list)
        assert isinstance(line, dict)
        try:
            node = decode(Node, message.get("node"))
        except FactsError as error:
            raise WireError(str(error)) from None
        return cls(key, node, tuple(errors), line, port or 0, message.get("has_main") is True, clock)


def gone_of(told: dict[str, Any], host: Node) -> Guest:
    """Somebody who gave up, as its farewell says, in the job of `host`."""
    number, errors = told.get("number"), told.get("errors")
    is_rank, is_number = host.form == Form.ENV, type(number) is int
    node = Node(
        str(told.get("host"))[:60],
        host.form,
        node_rank=number if is_number and not is_rank else None,
        rank=number if is_number and is_rank else None,
    )
    return Guest(
        str(told.get("key"))[:64],
        node,
        tuple(e for e in errors if isinstance(e, dict)) if isinstance(errors, list) else (),
    )


class State(Enum):
    """What the host of the meeting should do."""

    WAITING = "waiting"
    ENOUGH = "enough"
    """An elastic job has its least number of nodes: more may come."""
    CONTRADICTING = "contradicting"
    """Something is wrong already: whoever comes within a moment may still show who is to blame."""
    COMPLETE = "complete"


def expected(nodes: Sequence[Node]) -> int:
    """How many nodes (ranks in form env) the job has: what most say, the larger number on a tie."""
    told = Counter(n for n in map(_size, nodes) if n)
    return max(told, key=lambda n: (told[n], n), default=1)


def missing(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The node_ranks (ranks in form env) that have not come. Empty where nodes have no numbers, as with c10d."""
    numbers = {_number(node) for node in nodes}
    if None in numbers:
        return ()
    return tuple(number for number in range(expected(nodes)) if number not in numbers)


def still_gone(gone: Iterable[Guest], guests: Sequence[Guest]) -> list[Guest]:
    """Those that gave up and whose place is still empty: one that was started again and came is no absentee."""
    nodes = [guest.node for guest in guests]
    empty = missing(nodes)
    found = [each for each in gone if (number := _number(each.node)) is None or number in empty]
    return found[: max(expected(nodes) - len(nodes), 0)]


def contradicts(guests: Sequence[Guest]) -> bool:
    """Whether what they say cannot be true of one job that works."""
    nodes = [guest.node for guest in guests]
    numbers = Counter(n for n in map(_number, nodes) if n is not None)
    size = expected(nodes)
    return (
        any(guest.errors for guest in guests)
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


def assess(guests: Sequence[Guest]) -> State:
    """What the nodes that are here make of the meeting."""
    nodes = [guest.node for guest in guests]
    sizes = [size for node in nodes if (size := _size(node))]
    if not sizes:
        return State.WAITING  # for somebody who was told how many they are
    most = max(sizes)
    if len(nodes) >= most and not missing(nodes):
        return State.COMPLETE
    if contradicts(guests):
        placed = [
            number for number in map(_number, nodes) if number is None or number < most
        ]  # others take nobody's place
        return State.CONTRADICTING if len(placed) < most else State.COMPLETE
    least = max((node.least for node in nodes if node.least), default=most)
    return State.ENOUGH if len(nodes) >= least else State.WAITING


def of_another_job(guests: Sequence[Guest], port: int | None) -> frozenset[str]:
    """The keys of those who were told another port than `port`, where the job is complete without them: they may be the
    nodes of another job with the same script, and are to look for it.
    """
    same = [guest for guest in guests if guest.node.master_port == port]
    if len(same) == len(guests) or assess(same) is not State.COMPLETE or contradicts(same):
        return frozenset()
    return frozenset(guest.key for guest in guests) - {guest.key for guest in same}


def lacks_its_script(node: Node, guests: Sequence[Guest]) -> bool:
    """Whether a node that names another script may be of this job all the same: the script that it names, or that of the
    others, is not there, as after a slip of the pen; else it was told the same, and its place is empty.
    """
    first, number, nodes = guests[0].node, _number(node), [guest.node for guest in guests]
    is_alike = all(getattr(node, word) == getattr(first, word) for word in TOLD_ALIKE)
    is_empty = len(nodes) < expected(nodes) and (number is None or number in missing(nodes))
    return is_alike and is_empty and "" in (node.script_hash, first.script_hash)


def roll(guests: Sequence[Guest]) -> str:
    """Who has come and who is awaited, in words."""
    nodes = [guest.node for guest in guests]
    size, absent = expected(nodes), missing(nodes)
    unit = "rank" if nodes[0].form == Form.ENV else "node"
    here = ", ".join(node.host for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    words = f"{len(nodes)} of {size} {unit}s are here ({here})"
    if len(nodes) < size:
        awaited = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
        words += f"; waiting for {unit} {awaited}" if awaited else f"; waiting for {size - len(nodes)} more"
    return words


def ordered(guests: Sequence[Guest]) -> list[Guest]:
    """By number; without numbers the node that hosts the store first, then as they came."""

    def key(guest: Guest) -> tuple[int, float]:
        number = _number(guest.node)
        return (number if number is not None else 0 if guest.node.owns else 1, guest.node.waited_seconds or 0.0)

    return sorted(guests, key=key)


def _size(node: Node) -> int | None:
    return node.world_size if node.form == Form.ENV else node.nnodes


def _number(node: Node) -> int | None:
    return node.rank if node.form == Form.ENV else node.node_rank
