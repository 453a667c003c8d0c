"""Who waits for whom, where all calls that were made fit together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpdoctor.dumps.call_matrix import Board, Key, Lane
from ddpdoctor.dumps.conflict import Cause, Conflict, ranges, said, title
from ddpdoctor.facts.hang import Call, State

__all__ = ["deadlocks"]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Collectives with one rank at their root, which no dump tells."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank waits in a call for others: `missing` have not entered it. Empty: which ranks are in the group is not told."""

    rank: int
    call: Call
    missing: tuple[int, ...]


def deadlocks(board: Board) -> list[Conflict]:
    """The end of the chains of waiting ranks; where there is no chain, the call that all of them are in."""
    waits = {rank: wait for rank in board.dumps if (wait := _first_wait(board, rank)) is not None}
    awaited = {rank for wait in waits.values() for rank in wait.missing}
    if not awaited:
        return _together(board) or _apart(board, waits) or _open_messages(board)
    ends = awaited - waits.keys()
    if not ends:
        return [] if board.early & waits.keys() else [_circle(waits)]
    seen = tuple(sorted(ends & board.dumps.keys()))
    return [_missing(board, waits, seen) if seen else _without_dump(board, waits, tuple(sorted(ends)))]


def _first_wait(board: Board, rank: int) -> Wait | None:
    """The oldest open call of a rank that others have not entered."""
    found = [*_collective_waits(board, rank), *_message_waits(board, rank)]
    return min(found, key=lambda wait: wait.call.record, default=None)


def _collective_waits(board: Board, rank: int) -> list[Wait]:
    lanes = [(key, lanes[rank]) for key, lanes in board.lanes.items() if rank in lanes]
    found = (_lane_wait(board, key, rank, lane) for key, lane in lanes)
    return [wait for wait in found if wait is not None]


def _lane_wait(board: Board, key: Key, rank: int, lane: Lane) -> Wait | None:
    number = lane.first_open
    is_open = number is not None
    if number is None:
        if not lane.may_have_failed(lane.newest):
            return None
        number = lane.newest
    call = lane.call(number)
    assert call is not None
    missing = board.behind(key, number)
    coming = {each for each in missing if _comes(board, key, each)}
    if len(coming) * 2 > len(board.members(key)):  # most ranks: it is this one that was seen a moment later
        missing = tuple(each for each in missing if each not in coming)
    if not is_open or board.went_well_elsewhere(key, number):  # only a rank that is seen to be behind tells otherwise
        missing = tuple(each for each in missing if each in board.dumps)
    may_miss = is_open and not lane.group.ranks and not lane.group.is_default
    return Wait(rank, call, missing) if missing or may_miss else None


def _comes(board: Board, key: Key, rank: int) -> bool:
    """Whether a rank is in a call that another one has come out of: it is on its way, and its dump a moment older."""
    lane = board.lanes[key].get(rank)
    number = lane.first_open if lane is not None else None
    call = lane.call(number) if lane is not None and number is not None else None
    if number is None or call is None or call.state is State.TIMED_OUT:
        return False
    return board.went_well_elsewhere(key, number)


def _message_waits(board: Board, rank: int) -> list[Wait]:
    return [Wait(rank, call, (board.peer(call),)) for call in board.messages[rank] if not board.other_end(rank, call)]


def _missing(board: Board, waits: dict[int, Wait], ends: tuple[int, ...]) -> Conflict:
    """Ranks that wait for nobody and are waited for."""
    direct = [wait for wait in waits.values() if set(wait.missing) & set(ends)]
    first = min(direct, key=lambda wait: (wait.call.group.key, wait.call.sequence)).call
    number, op = first.sequence, first.op
    same = [w.rank for w in direct if w.call.group.key == first.group.key and w.call.sequence == number]
    blamed = tuple(rank for rank in ends if any(rank in waits[each].missing for each in same))
    last = board.last_call(blamed[0])
    whose = "its last" if len(blamed) == 1 else f"the last of rank {blamed[0]}"
    then = f"{whose} was {said(last)}{_is_open(last)}" if last is not None else "its dump is empty"
    what = "posted the other end" if first.is_p2p else "called it"
    where = title(first.group, number, first.is_p2p)
    message = f"{where}: {ranges(same)} {_wait(same)} in {op}{op.place}; {ranges(blamed)} never {what}: {then}"
    others = sorted(waits.keys() - set(same))
    if others:
        message += f"; {ranges(others)} {_wait(others)} in other calls"
    cause = Cause.NO_RECEIVER if first.is_p2p else Cause.MISSING
    waiting = tuple(sorted(waits))
    if board.older:
        message += f"; the dump of {ranges(board.older)} is of an earlier moment: the job may not have stood still yet"
    early = board.early.intersection(blamed)
    if early:
        message += (
            f"; the others came out of later calls with {ranges(early)}: so old a dump is of another moment or run"
        )
    last_op = None if last is None else last.op
    is_certain = not board.older and not early
    return Conflict(cause, message, blamed, waiting, first.group, number, last_op, op, is_certain)


def _is_open(last: Call) -> str:
    """What to think of a last call that has not ended, though other ranks came out of it."""
    if last.state.is_over or last.op.name not in ROOTED or last.is_p2p:
        return ""
    return ", which has not ended there: another src or dst than on the ranks that came out of it?"


def _without_dump(board: Board, waits: dict[int, Wait], ends: tuple[int, ...]) -> Conflict:
    """Everybody whose dump is there waits: it is one of those whose dump is not."""
    first = min(waits.values(), key=lambda wait: (wait.call.group.key, wait.call.sequence)).call
    who = "it" if len(ends) == 1 else "they"
    where = title(first.group, first.sequence, first.is_p2p)
    message = (
        f"{where}: {ranges(waits)} {_wait(waits)} in {first.op}{first.op.place}; "
        f"{ranges(ends)} left no dump: {who} died, never got there, or the file is missing"
    )
    blamed = ends if len(ends) < len(board.dumps) else ()
    waiting = tuple(sorted(waits))
    return Conflict(Cause.NO_DUMP, message, blamed, waiting, first.group, first.sequence, None, first.op, False)


def _apart(board: Board, waits: dict[int, Wait]) -> list[Conflict]:
    """Ranks that are alone in their calls, in groups of which the dumps do not tell the members."""
    if not waits:
        return []
    if len(waits) > 1 and set(range(board.world)) <= waits.keys():
        return [_circle(waits)]
    first = waits[min(waits)].call
    message = f"{_told(waits, sorted(waits))}; no other rank entered it, and which ranks are in this group is not told"
    return [
        Conflict(
            Cause.MISSING,
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


def _circle(waits: dict[int, Wait]) -> Conflict:
    """Ranks that wait for each other; where most of them are in one call, the others are to blame."""
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
        Cause.SEND_ORDER if is_messages else Cause.CYCLE,
        f"{_told(waits, ring)}: they wait for each other",
        tuple(sorted(odd)),
        tuple(sorted(set(ring) - set(odd))),
        first.group,
        first.sequence,
        first.op,
        waits[most[-1]].call.op,
    )


def _told(waits: dict[int, Wait], ranks: Sequence[int]) -> str:
    """Which ranks wait in which call for whom, as `rank 1 waits in seq 2 barrier for ranks 0, 2`."""
    together: dict[object, list[int]] = defaultdict(list)
    for rank in ranks:
        together[_place(waits[rank].call), waits[rank].missing].append(rank)
    parts = [
        f"{ranges(each)} {_wait(each)} in {said(waits[each[0]].call)}{_for(waits[each[0]].missing)}"
        for each in together.values()
    ]
    return "; ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def _place(call: Call) -> object:
    """What is equal for ranks that are in one call."""
    return (call.group.key, call.sequence, call.op) if call.is_p2p else (call.group.key, call.sequence)


def _ring(waits: dict[int, Wait]) -> list[int]:
    """The ranks of one circle of waiting, from its lowest; all of them where one waits for members that nobody knows."""
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


def _together(board: Board) -> list[Conflict]:
    """Nobody is missing: some call is open on all its ranks."""
    return [conflict for key in board.lanes if (conflict := _open_everywhere(board, key)) is not None]


def _open_messages(board: Board) -> list[Conflict]:
    """A send that is open on both of its ends."""
    pairs = ((rank, call) for rank, calls in board.messages.items() for call in calls if call.op.name == "send")
    for rank, call in pairs:
        ends = (rank, board.peer(call))
        message = (
            f"{title(call.group, call.sequence, True)}: rank {ends[0]} sends {call.op}{call.op.place}, rank {ends[1]} "
            "receives, and it is not finished: nobody is missing, and the calls fit"
        )
        group, op = call.group, call.op
        return [Conflict(Cause.TOGETHER, message, (), tuple(sorted(ends)), group, call.sequence, None, op, False)]
    return []


def _open_everywhere(board: Board, key: Key) -> Conflict | None:
    lanes = {rank: lane for rank, lane in board.lanes[key].items() if lane.entries}
    open_at: dict[int, list[int]] = defaultdict(list)
    for rank, lane in lanes.items():
        if lane.first_open is not None:
            open_at[lane.first_open].append(rank)
    if not open_at:
        return None
    number = min(open_at)
    ranks = open_at[number]
    out = set(board.members(key)) - set(ranks)
    broken = tuple(rank for rank in sorted(out) if rank in board.dumps and board.dumps[rank].problem is not None)
    if broken and all(rank in broken or (rank in lanes and lanes[rank].newest >= number) for rank in out):
        return _broken_off(board, key, number, ranks, broken)
    if any(rank not in lanes or number not in lanes[rank].entries for rank in out) or len(ranks) < 2:
        return None
    calls = {rank: call for rank in ranks if (call := lanes[rank].call(number)) is not None}
    first = calls[ranks[0]]
    if out:
        message = (
            f"{title(first.group, number)}: {ranges(ranks)} called {first.op}{first.op.place} and it is not finished"
        )
        message += (
            f", though {ranges(out)} came out of it: dumps of two moments, or a link that stalls; take them again"
        )
        return Conflict(Cause.TOGETHER, message, (), tuple(ranks), first.group, number, None, first.op, False)
    started = tuple(rank for rank, call in calls.items() if call.state is State.STARTED)
    late = tuple(rank for rank, call in calls.items() if call.state is State.SCHEDULED)
    message = f"{title(first.group, number)}: {ranges(ranks)} called {first.op}{first.op.place}"
    if started and late:
        message += f"; its kernel never started on {ranges(late)}: that GPU is busy with something earlier"
        return Conflict(Cause.NOT_STARTED, message, late, started, first.group, number, first.op)
    timed_out = any(call.state is State.TIMED_OUT for call in calls.values())
    are_known = first.group.ranks or first.group.is_default
    who = "nobody is missing" if are_known else "which other ranks are in this group is not told, one may be missing"
    message += f" and it {'timed out' if timed_out else 'is not finished'}: {who}, and the calls fit"
    return Conflict(Cause.TOGETHER, message, (), tuple(ranks), first.group, number, None, first.op, timed_out)


def _broken_off(board: Board, key: Key, number: int, ranks: Sequence[int], broken: tuple[int, ...]) -> Conflict:
    """Everybody whose dump is whole waits: whether the others came as well stood in the part that is lost."""
    first = board.lanes[key][ranks[0]].call(number)
    assert first is not None
    whose = f"the dump{'s' if len(broken) > 1 else ''} of {ranges(broken)} break{'' if len(broken) > 1 else 's'} off"
    message = (
        f"{title(first.group, number)}: {ranges(ranks)} {_wait(ranks)} in {first.op}{first.op.place}; "
        f"{whose} before: whether {'they' if len(broken) > 1 else 'it'} called it is not known"
    )
    blamed = broken if len(broken) < len(ranks) else ()
    return Conflict(Cause.MISSING, message, blamed, tuple(ranks), first.group, number, None, first.op, is_certain=False)


def _wait(ranks: Iterable[int]) -> str:
    return "waits" if len(tuple(ranks)) == 1 else "wait"


def _for(ranks: tuple[int, ...]) -> str:
    return f" for {ranges(ranks)}" if ranks else ""
