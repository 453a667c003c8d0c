"""Calls that have not ended although no rank is missing: every rank of the group entered or finished them."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.dumps.call_matrix import CallMatrix, GroupKey, RankCalls
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges, title, wait_verb
from ddpdoctor.facts.hang import CallState

__all__ = ["open_collectives", "open_messages"]


def open_collectives(matrix: CallMatrix) -> list[Conflict]:
    """In each group the first collective that is open on all its ranks."""
    return [conflict for key in matrix.by_group if (conflict := _open_collective(matrix, key)) is not None]


def open_messages(matrix: CallMatrix) -> list[Conflict]:
    """The first send that is open on both of its ends."""
    pairs = ((rank, call) for rank, calls in matrix.messages.items() for call in calls if call.op.name == "send")
    for rank, call in pairs:
        ends = (rank, matrix.peer(call))
        message = (
            f"{title(call.group, call.sequence, True)}: rank {ends[0]} sends {call.op}{call.op.place}, rank {ends[1]} "
            "receives, and it is not finished: no rank is missing, and the calls match"
        )
        group, op = call.group, call.op
        return [
            Conflict(ConflictCause.TOGETHER, message, (), tuple(sorted(ends)), group, call.sequence, None, op, False)
        ]
    return []


def _open_collective(matrix: CallMatrix, key: GroupKey) -> Conflict | None:
    by_rank = {rank: rank_calls for rank, rank_calls in matrix.by_group[key].items() if rank_calls.entries}
    numbers = {rank: rank_calls.first_open for rank, rank_calls in by_rank.items()}
    number = min((number for number in numbers.values() if number is not None), default=None)
    if number is None:
        return None
    ranks = [rank for rank, first_open in numbers.items() if first_open == number]
    out = set(matrix.members(key)) - set(ranks)
    broken = tuple(rank for rank in sorted(out) if rank in matrix.dumps and matrix.dumps[rank].problem is not None)
    if broken and all(rank in broken or (rank in by_rank and by_rank[rank].newest >= number) for rank in out):
        return _cut_dump(by_rank[ranks[0]], number, ranks, broken)
    if any(rank not in by_rank or number not in by_rank[rank].entries for rank in out) or len(ranks) < 2:
        return None
    inside = {rank: by_rank[rank] for rank in ranks}
    return _finished_on_some(inside, number, out) if out else _on_all_ranks(inside, number)


def _cut_dump(first_rank: RankCalls, number: int, ranks: Sequence[int], broken: tuple[int, ...]) -> Conflict:
    """All ranks with a complete dump wait; whether the others joined is in the part that is missing."""
    first = first_rank.call(number)
    assert first is not None
    whose = f"the dump{'s' if len(broken) > 1 else ''} of {ranges(broken)} end{'' if len(broken) > 1 else 's'}"
    message = (
        f"{title(first.group, number)}: {ranges(ranks)} {wait_verb(ranks)} in {first.op}{first.op.place}; "
        f"{whose} before this call: unknown whether {'they' if len(broken) > 1 else 'it'} made it"
    )
    blamed = broken if len(broken) < len(ranks) else ()
    return Conflict(
        ConflictCause.MISSING, message, blamed, tuple(ranks), first.group, number, None, first.op, is_certain=False
    )


def _finished_on_some(inside: dict[int, RankCalls], number: int, out: set[int]) -> Conflict:
    """Some ranks finished the call, and others are still in it."""
    first = next(call for rank_calls in inside.values() if (call := rank_calls.call(number)) is not None)
    message = (
        f"{title(first.group, number)}: {ranges(inside)} called {first.op}{first.op.place} and it is not finished, although "
        f"{ranges(out)} finished it: the dumps are from different moments, or a link stalls; take them again"
    )
    return Conflict(ConflictCause.TOGETHER, message, (), tuple(inside), first.group, number, None, first.op, False)


def _on_all_ranks(inside: dict[int, RankCalls], number: int) -> Conflict:
    """All ranks are in the call: its kernel did not start on some, or it moves no data."""
    calls = {rank: call for rank, rank_calls in inside.items() if (call := rank_calls.call(number)) is not None}
    first = next(iter(calls.values()))
    started = tuple(rank for rank, call in calls.items() if call.state is CallState.STARTED)
    late = tuple(rank for rank, call in calls.items() if call.state is CallState.SCHEDULED)
    message = f"{title(first.group, number)}: {ranges(inside)} called {first.op}{first.op.place}"
    if started and late:
        message += f"; its kernel never started on {ranges(late)}: that GPU is still busy with an earlier kernel"
        return Conflict(ConflictCause.NOT_STARTED, message, late, started, first.group, number, first.op)
    timed_out = any(call.state is CallState.TIMED_OUT for call in calls.values())
    are_known = first.group.ranks or first.group.is_default
    who = "no rank is missing" if are_known else "the dumps do not list the ranks of this group, so one may be missing"
    message += f" and it {'timed out' if timed_out else 'is not finished'}: {who}, and the calls fit"
    return Conflict(ConflictCause.TOGETHER, message, (), tuple(inside), first.group, number, None, first.op, timed_out)
