"""Who waits for whom, where all calls that were made fit together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ddpdoctor.dumps.call_matrix import CallMatrix, GroupKey, RankCalls
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges, said, title, wait_verb
from ddpdoctor.dumps.open_calls import open_collectives, open_messages
from ddpdoctor.facts.hang import Call, CallState
from ddpdoctor.light_dataclass import dataclass

__all__ = ["deadlocks"]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Collectives with one rank at their root, which no dump records."""


@dataclass(frozen=True, slots=True)
class RankWait:
    """One rank waits in a call for others: `missing` have not entered it. Empty: the dump does not list the group's ranks."""

    rank: int
    call: Call
    missing: tuple[int, ...]


def deadlocks(matrix: CallMatrix) -> list[Conflict]:
    """The end of the chains of waiting ranks; without a chain, the call that all of them are in."""
    waits = {rank: wait for rank in matrix.dumps if (wait := _first_wait(matrix, rank)) is not None}
    awaited = {rank for wait in waits.values() for rank in wait.missing}
    if not awaited:
        return open_collectives(matrix) or _apart(matrix, waits) or open_messages(matrix)
    ends = awaited - waits.keys()
    if not ends:
        return [] if matrix.early & waits.keys() else [_circle(waits)]
    seen = tuple(sorted(ends & matrix.dumps.keys()))
    return [_missing(matrix, waits, seen) if seen else _without_dump(matrix, waits, tuple(sorted(ends)))]


def _first_wait(matrix: CallMatrix, rank: int) -> RankWait | None:
    """The oldest open call of a rank that others have not entered."""
    found = [*_collective_waits(matrix, rank), *_message_waits(matrix, rank)]
    return min(found, key=lambda wait: wait.call.record, default=None)


def _collective_waits(matrix: CallMatrix, rank: int) -> list[RankWait]:
    by_rank = [(key, by_rank[rank]) for key, by_rank in matrix.by_group.items() if rank in by_rank]
    found = (_wait_in_group(matrix, key, rank, rank_calls) for key, rank_calls in by_rank)
    return [wait for wait in found if wait is not None]


def _wait_in_group(matrix: CallMatrix, key: GroupKey, rank: int, rank_calls: RankCalls) -> RankWait | None:
    number = rank_calls.first_open
    is_open = number is not None
    if number is None:
        if not rank_calls.may_have_failed(rank_calls.newest):
            return None
        number = rank_calls.newest
    call = rank_calls.call(number)
    assert call is not None
    missing = matrix.not_entered(key, number)
    coming = {each for each in missing if _comes(matrix, key, each)}
    if len(coming) * 2 > len(matrix.members(key)):  # most ranks: it is this one that was seen a moment later
        missing = tuple(each for each in missing if each not in coming)
    if not is_open or matrix.completed_elsewhere(key, number):  # unless a dump shows that a rank is behind
        missing = tuple(each for each in missing if each in matrix.dumps)
    may_miss = is_open and not rank_calls.group.ranks and not rank_calls.group.is_default
    return RankWait(rank, call, missing) if missing or may_miss else None


def _comes(matrix: CallMatrix, key: GroupKey, rank: int) -> bool:
    """Whether a rank is in a call that another one has come out of: it is on its way, and its dump a moment older."""
    rank_calls = matrix.by_group[key].get(rank)
    number = rank_calls.first_open if rank_calls is not None else None
    call = rank_calls.call(number) if rank_calls is not None and number is not None else None
    if number is None or call is None or call.state is CallState.TIMED_OUT:
        return False
    return matrix.completed_elsewhere(key, number)


def _message_waits(matrix: CallMatrix, rank: int) -> list[RankWait]:
    return [
        RankWait(rank, call, (matrix.peer(call),)) for call in matrix.messages[rank] if not matrix.other_end(rank, call)
    ]


def _missing(matrix: CallMatrix, waits: dict[int, RankWait], ends: tuple[int, ...]) -> Conflict:
    """Ranks that do not wait and that other ranks wait for."""
    direct = [wait for wait in waits.values() if set(wait.missing) & set(ends)]
    first = min(direct, key=lambda wait: (wait.call.group.key, wait.call.sequence)).call
    number, op = first.sequence, first.op
    same = [w.rank for w in direct if w.call.group.key == first.group.key and w.call.sequence == number]
    blamed = tuple(rank for rank in ends if any(rank in waits[each].missing for each in same))
    last = matrix.last_call(blamed[0])
    what = "posted the other end" if first.is_p2p else "called it"
    where = title(first.group, number, first.is_p2p)
    message = f"{where}: {ranges(same)} {wait_verb(same)} in {op}{op.place}; {ranges(blamed)} never {what}: "
    message += _last_of(blamed, last)
    others = sorted(waits.keys() - set(same))
    if others:
        message += f"; {ranges(others)} {wait_verb(others)} in other calls"
    message += _doubts(matrix, blamed)
    is_certain = not matrix.older and not matrix.early.intersection(blamed)
    cause = ConflictCause.NO_RECEIVER if first.is_p2p else ConflictCause.MISSING
    last_op = None if last is None else last.op
    return Conflict(cause, message, blamed, tuple(sorted(waits)), first.group, number, last_op, op, is_certain)


def _last_of(blamed: tuple[int, ...], last: Call | None) -> str:
    """The last call of the first rank to blame."""
    whose = "its last" if len(blamed) == 1 else f"the last of rank {blamed[0]}"
    return "its dump is empty" if last is None else f"{whose} was {said(last)}{_is_open(last)}"


def _doubts(matrix: CallMatrix, blamed: tuple[int, ...]) -> str:
    """What follows from dumps that are of an earlier moment than the others."""
    words = ""
    if matrix.older:
        words += f"; the dump of {ranges(matrix.older)} was taken earlier than the others: the job may still have been running"
    if early := matrix.early.intersection(blamed):
        words += f"; the others finished later calls with {ranges(early)}: that dump is from an earlier moment or run"
    return words


def _is_open(last: Call) -> str:
    """The question that an unfinished last call raises if other ranks finished it."""
    if last.state.is_over or last.op.name not in ROOTED or last.is_p2p:
        return ""
    return ", which is unfinished there: probably another src or dst than on the ranks that finished it"


def _without_dump(matrix: CallMatrix, waits: dict[int, RankWait], ends: tuple[int, ...]) -> Conflict:
    """All ranks with a dump wait: the cause is a rank without one."""
    first = min(waits.values(), key=lambda wait: (wait.call.group.key, wait.call.sequence)).call
    who = "it" if len(ends) == 1 else "they"
    where = title(first.group, first.sequence, first.is_p2p)
    message = (
        f"{where}: {ranges(waits)} {wait_verb(waits)} in {first.op}{first.op.place}; "
        f"{ranges(ends)} left no dump: {who} died, did not reach the call, or the file is missing"
    )
    blamed = ends if len(ends) < len(matrix.dumps) else ()
    waiting = tuple(sorted(waits))
    return Conflict(ConflictCause.NO_DUMP, message, blamed, waiting, first.group, first.sequence, None, first.op, False)


def _apart(matrix: CallMatrix, waits: dict[int, RankWait]) -> list[Conflict]:
    """Ranks that are alone in their calls, in groups whose members the dumps do not list."""
    if not waits:
        return []
    if len(waits) > 1 and set(range(matrix.world)) <= waits.keys():
        return [_circle(waits)]
    first = waits[min(waits)].call
    message = (
        f"{_told(waits, sorted(waits))}; no other rank entered it, and the dumps do not list the ranks of this group"
    )
    return [
        Conflict(
            ConflictCause.MISSING,
            message,
            (),
            tuple(sorted(waits)),
            first.group,
            first.sequence,
            None,
            first.op,
            is_certain=False,
        )
    ]


def _circle(waits: dict[int, RankWait]) -> Conflict:
    """Ranks that wait for each other; if most of them are in one call, the others are the cause."""
    ring = _ring(waits)
    together: dict[object, list[int]] = defaultdict(list)
    for rank in ring:
        together[_place(waits[rank].call)].append(rank)
    calls = [waits[rank].call for rank in ring]
    is_messages = all(call.is_p2p for call in calls) and len({call.op.name for call in calls}) == 1
    most = max(together.values(), key=len)
    odd = [rank for rank in ring if rank not in most] if len(ring) < len(most) * 2 < 2 * len(ring) else ring
    first = waits[odd[0]].call
    return Conflict(
        ConflictCause.SEND_ORDER if is_messages else ConflictCause.CYCLE,
        f"{_told(waits, ring)}: they wait for each other",
        tuple(sorted(odd)),
        tuple(sorted(set(ring) - set(odd))),
        first.group,
        first.sequence,
        first.op,
        waits[most[-1]].call.op,
    )


def _told(waits: dict[int, RankWait], ranks: Sequence[int]) -> str:
    """Which ranks wait in which call for whom, as `rank 1 waits in seq 2 barrier for ranks 0, 2`."""
    together: dict[object, list[int]] = defaultdict(list)
    for rank in ranks:
        together[_place(waits[rank].call), waits[rank].missing].append(rank)
    parts = [
        f"{ranges(each)} {wait_verb(each)} in {said(waits[each[0]].call)}{_for(waits[each[0]].missing)}"
        for each in together.values()
    ]
    return "; ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def _place(call: Call) -> object:
    """What is equal for ranks that are in one call."""
    return (call.group.key, call.sequence, call.op) if call.is_p2p else (call.group.key, call.sequence)


def _ring(waits: dict[int, RankWait]) -> list[int]:
    """The ranks of one circle of waiting, from its lowest; all of them if one waits for unknown members."""
    path: list[int] = []
    rank = min(waits)
    while rank not in path:
        path.append(rank)
        if not waits[rank].missing:
            return sorted(waits)
        rank = min(waits[rank].missing)
    ring = path[path.index(rank) :]
    start = ring.index(min(ring))
    return ring[start:] + ring[:start]


def _for(ranks: tuple[int, ...]) -> str:
    return f" for {ranges(ranks)}" if ranks else ""
