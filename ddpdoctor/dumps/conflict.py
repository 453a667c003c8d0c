"""What the ranks disagree about, in words."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ddpdoctor.facts.hang import Call, Operation, ProcessGroup
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Conflict", "ConflictCause", "ranges", "said", "title", "wait_verb"]


class ConflictCause(str, Enum):
    """What the ranks disagree about."""

    SHAPE = "shape"
    DTYPE = "dtype"
    ORDER = "order"
    SKIPPED = "skipped"
    EXTRA = "extra"
    CYCLE = "cycle"
    SEND_ORDER = "send_order"
    NO_RECEIVER = "no_receiver"
    MISSING = "missing"
    NO_DUMP = "no_dump"
    NOT_STARTED = "not_started"
    TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Conflict:
    """One disagreement. `ranks` are to blame, `waiting` are the others; `op` is a call of the first rank to blame.

    `ranks` is empty when nobody can be blamed. `is_certain` is False when the dumps allow another reading.
    """

    cause: ConflictCause
    message: str
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    group: ProcessGroup | None = None
    sequence: int | None = None
    op: Operation | None = None
    expected: Operation | None = None
    is_certain: bool = True


def ranges(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    words = [f"{p[0]}-{p[-1]}" if p[-1] - p[0] > 1 else ", ".join(map(str, p)) for p in parts]
    return f"rank{'' if len(parts) == 1 and len(parts[0]) == 1 else 's'} {', '.join(words)}"


def title(group: ProcessGroup, sequence: int, is_p2p: bool = False) -> str:
    """`seq 4`, with the process group where it is not the default one."""
    number = f"{'p2p ' if is_p2p else ''}seq {sequence}"
    if group.is_default:
        return number
    name = group.description or group.name
    return f"process group {name!r}{f' ({ranges(group.ranks)})' if group.ranks else ''}, {number}"


def said(call: Call) -> str:
    """`seq 3 broadcast([4]) at train.py:17`."""
    return f"{title(call.group, call.sequence, call.is_p2p)} {call.op}{call.op.place}"


def wait_verb(ranks: Iterable[int]) -> str:
    """`waits` for one rank, `wait` for several."""
    return "waits" if len(tuple(ranks)) == 1 else "wait"
