"""What one rehearsed process did so far."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from ddpdoctor.facts.rehearsal import CodePlace, RankEnd, RehearsedCall
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.sequences.records import Record, places_of

__all__ = ["WORLD", "MadeCall", "Track", "members_of", "numel"]

WORLD = "world"


@dataclass(slots=True)
class MadeCall:
    """One call of one process: `index` counts the collectives of its group from 0; -1 for point-to-point calls."""

    number: int
    operation: str
    group: str
    index: int
    record: Record
    is_over: bool = False
    is_waited_for: bool = False

    @property
    def places(self) -> tuple[CodePlace, ...]:
        return places_of(self.record.get("at"))

    @property
    def direction(self) -> str | None:
        """`send` or `recv` of a point-to-point call."""
        found = self.record.get("p2p")
        return found if isinstance(found, str) else None

    @property
    def peer(self) -> int | None:
        return _integer(self.record.get("peer"))

    def tensors(self, key: str = "in") -> list[tuple[str, tuple[int, ...], str | None]]:
        """dtype, shape and device of the tensors that were passed in, or as `out`."""
        found = self.record.get(key)
        if not isinstance(found, list):
            return []
        return [
            (str(each[0]), tuple(n for n in each[1] if isinstance(n, int)), each[2])
            for each in found
            if isinstance(each, list) and len(each) == 3 and isinstance(each[1], list)
        ]

    def seen(self, world: int) -> RehearsedCall:
        """The call for a report."""
        tensors = self.tensors() or self.tensors("out")
        shapes = list(dict.fromkeys(f"{list(shape)}" for _, shape, _ in tensors))
        dtypes = list(dict.fromkeys(dtype for dtype, _, _ in tensors))
        count = f"{len(tensors)} x " if len(tensors) > 1 and len(shapes) == 1 else ""
        root = _integer(self.record.get("root"))
        return RehearsedCall(
            operation=self.operation,
            number=self.index + 1,
            group=members_of(self.group, world),
            tensors=f"{count}{', '.join(shapes[:3])} {', '.join(dtypes)}" if tensors else "",
            dtypes=", ".join(dtypes),
            reduction=_text(self.record.get("red")),
            root=root,
            peer=self.peer,
            tag=_integer(self.record.get("tag")),
            step=_integer(self.record.get("step")) or 0,
            places=self.places,
        )


def numel(shape: tuple[int, ...]) -> int:
    """The number of elements."""
    return math.prod(shape)


def members_of(group: str, world: int) -> tuple[int, ...]:
    """The global ranks of a group, from its name."""
    if group == WORLD:
        return tuple(range(world))
    ranks = group.partition("#")[0].split(",")
    return tuple(int(rank) for rank in ranks if rank.isdecimal())


@dataclass(slots=True)
class Track:
    """One process. `rank` is None until it joins, unless its launcher gave it one."""

    key: int
    rank: int | None = None
    index: int | None = None
    pid: int = 0
    world: int | None = None
    node: int | None = None
    local_rank: int | None = None
    sequences: dict[str, list[MadeCall]] = field(default_factory=dict)
    calls: dict[int, MadeCall] = field(default_factory=dict)
    transfers: list[MadeCall] = field(default_factory=list)
    blocked: list[MadeCall] = field(default_factory=list)
    store: Record | None = None
    joining: Record | None = None
    has_joined: bool = False
    backend: str = ""
    device: str | None = None
    end: RankEnd = RankEnd.RUNNING
    has_left: bool = False
    is_gone: bool = False
    exit_code: int | None = None
    steps: int = 0
    raised: Record | None = None
    last: Record | None = None
    destroyed: set[str] = field(default_factory=set)
    end_places: tuple[CodePlace, ...] = ()
    records: dict[str, list[Record]] = field(default_factory=dict)
    """Records of other kinds, by kind; at most MOST_KEPT of each."""

    @property
    def is_done(self) -> bool:
        """Whether it will make no more calls."""
        return self.is_gone or self.has_left or self.raised is not None

    @property
    def is_blocked(self) -> bool:
        """Whether it is in a call that has not returned."""
        return bool(self.blocked) or self.store is not None or (self.joining is not None and not self.has_joined)

    def sequence(self, group: str) -> list[MadeCall]:
        return self.sequences.setdefault(group, [])

    def of_kind(self, kind: str) -> list[Record]:
        return self.records.get(kind, [])


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
