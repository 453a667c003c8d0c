"""Which dumps belong together: one of each rank, of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.dumps.file_names import numbers_in
from ddpdoctor.facts.hang import Dump

__all__ = ["NAMELESS", "choose"]

NAMELESS = "neither its name nor its content gives its rank"

STALE_SECONDS = 3600.0
"""A dump whose last entry is so much older than everything in the others is from an earlier run, whatever the clocks."""


def choose(dumps: Sequence[Dump]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """One dump of each rank, and in words what was left out: a second one of a rank, an older run's, one without a rank."""
    left = [f"{d.source}: {d.problem}" for d in dumps if d.problem is not None]
    known: dict[int, Dump] = {}
    placed = _placed(dumps, left)
    for dump in placed:
        assert dump.rank is not None
        other = known.get(dump.rank)
        if other is None:
            known[dump.rank] = dump
            continue
        newer, older = (dump, other) if (dump.last_ns or 0) > (other.last_ns or 0) else (other, dump)
        known[dump.rank] = newer
        left.append(f"{older.source}: rank {dump.rank} has a newer dump, {newer.source}")
    starts = sorted(d.first_ns for d in known.values() if d.first_ns is not None)
    if len(starts) > 2:
        usual = starts[len(starts) // 2]
        for rank, dump in list(known.items()):
            if dump.last_ns is not None and usual - dump.last_ns > STALE_SECONDS * 1e9:
                hours = (usual - dump.last_ns) / 3.6e12
                left.append(f"{dump.source}: ends {hours:.0f} h before the others begin: from an earlier run")
                del known[rank]
    return tuple(known[rank] for rank in sorted(known)), tuple(left)


def _placed(dumps: Sequence[Dump], left: list[str]) -> list[Dump]:
    """The dumps with a rank. Those without get the ranks that are missing: the only one the only rank, or several by a number
    in their names, where these are just the ones that are missing.
    """
    found = [_within_world(d) for d in dumps if len(d) or (d.rank is not None and d.problem is None)]
    nameless = [d for d in found if d.rank is None]
    found = [d for d in found if d.rank is not None]
    world = max((d.world_size or 0 for d in dumps), default=0)
    missing = sorted(set(range(world)) - {d.rank for d in found if d.rank is not None})
    if len(nameless) == 1 and len(missing) == 1:
        return [*found, replace(nameless[0], rank=missing[0])]
    told = [numbers_in(d.source) for d in nameless]
    for numbers in zip(*told, strict=True) if len(nameless) > 1 and len(set(map(len, told))) == 1 else ():
        if sorted(numbers) == (missing or [*range(len(numbers))]):
            return [*found, *(replace(d, rank=number) for d, number in zip(nameless, numbers, strict=True))]
    if len(nameless) == len(dumps) == 1 and world <= 1:
        return [replace(nameless[0], rank=0)]
    left += [f"{d.source}: {NAMELESS}" for d in nameless]
    return found


def _within_world(dump: Dump) -> Dump:
    """The dump without its rank where a number in its name cannot be one."""
    is_one = dump.rank is None or not dump.world_size or dump.rank < dump.world_size
    return dump if is_one else replace(dump, rank=None)
