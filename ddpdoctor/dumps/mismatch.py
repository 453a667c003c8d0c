"""The first call of a process group that is not the same on all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict

from ddpdoctor.dumps.call_matrix import CallForm, CallMatrix, GroupKey, RankCalls
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges, title
from ddpdoctor.facts.hang import CallState, Operation

__all__ = ["mismatches"]

LOOK_AHEAD = 64


def mismatches(matrix: CallMatrix) -> list[Conflict]:
    """In each group the first sequence number at which the ranks called different things."""
    found = [conflict for key in matrix.by_group if (conflict := _first(matrix, key)) is not None]
    return found or [conflict for rank in matrix.messages if (conflict := _message(matrix, rank)) is not None]


def _message(matrix: CallMatrix, rank: int) -> Conflict | None:
    """The first send of a rank that the other end receives with another size or type."""
    for call in matrix.messages[rank]:
        other = matrix.other_end(rank, call) if call.op.name == "send" else None
        if other is None or not call.op.output_numel or not other.op.output_numel:
            continue
        ours, theirs = call.op, other.op
        if (ours.output_numel, ours.dtypes) == (theirs.output_numel, theirs.dtypes):
            continue
        cause = ConflictCause.SHAPE if ours.output_numel != theirs.output_numel else ConflictCause.DTYPE
        types = [f" of {op.dtypes}" if cause is ConflictCause.DTYPE else "" for op in (ours, theirs)]
        peer = matrix.peer(call)
        message = (
            f"{title(call.group, call.sequence, True)}: rank {rank} called {ours}{types[0]}{ours.place}; rank {peer} called "
            f"{theirs}{types[1]}{theirs.place}{_words(cause, (rank,), theirs)}"
        )
        return Conflict(cause, message, tuple(sorted((rank, peer))), (), call.group, call.sequence, ours, theirs)
    return None


def _first(matrix: CallMatrix, key: GroupKey) -> Conflict | None:
    by_rank = {rank: rank_calls for rank, rank_calls in matrix.by_group[key].items() if rank_calls.entries}
    numbers = sorted({number for rank_calls in by_rank.values() for number in rank_calls.entries})
    for number in numbers:
        forms = {rank: rank_calls.form(number) for rank, rank_calls in by_rank.items() if number in rank_calls.entries}
        if len(set(forms.values())) > 1 and not _went_well(by_rank, number):
            return _differ(by_rank, number, forms)
    return None


def _went_well(by_rank: dict[int, RankCalls], number: int) -> bool:
    """NCCL completed it everywhere: sizes that differ were meant to."""
    calls = [rank_calls.call(number) for rank_calls in by_rank.values() if number in rank_calls.entries]
    return all(call is not None and call.state is CallState.COMPLETED for call in calls)


def _differ(by_rank: dict[int, RankCalls], number: int, forms: dict[int, CallForm]) -> Conflict:
    counts = Counter(forms.values()).most_common()
    usual = counts[0][0]
    is_tie = len(counts) > 1 and counts[1][1] == counts[0][1]
    odd = tuple(rank for rank, form in forms.items() if form != usual)
    others = tuple(rank for rank, form in forms.items() if form == usual)
    op, expected = by_rank[odd[0]].op(number), by_rank[others[0]].op(number)
    cause, is_certain = _cause(by_rank[odd[0]], by_rank[others[0]], number)
    told: dict[CallForm, list[int]] = defaultdict(list)
    for rank, form in forms.items():
        told[form].append(rank)
    parts = [
        f"{ranges(ranks)} called {_text(by_rank[ranks[0]], number, cause)}"
        for _, ranks in sorted(told.items(), key=lambda item: (item[0] == usual, item[1]))
    ]
    message = (
        f"{title(by_rank[odd[0]].group, number)}: {'; '.join(parts[:6])}{_words(cause, odd, expected, is_certain)}"
    )
    blamed = (*odd, *others) if is_tie else odd
    waiting = () if is_tie else others
    group = by_rank[odd[0]].group
    return Conflict(cause, message, tuple(sorted(blamed)), waiting, group, number, op, expected, is_certain)


def _text(rank_calls: RankCalls, number: int, cause: ConflictCause) -> str:
    op, more = rank_calls.op(number), len(rank_calls.entries[number]) - 1
    types = f" of {op.dtypes}" if cause is ConflictCause.DTYPE else ""
    return f"{op}{types}{f' and {more} more' if more else ''}{op.place}"


def _words(cause: ConflictCause, odd: tuple[int, ...], expected: Operation, is_certain: bool = True) -> str:
    who = ranges(odd)
    if cause is ConflictCause.SKIPPED and not is_certain:
        return f"; {who} continued while the others repeat {expected.name}: fewer iterations, probably less data"
    if cause is ConflictCause.EXTRA and not is_certain:
        return f"; {who} repeat{'s' if len(odd) == 1 else ''} it after the others continued: more iterations, probably more data"
    return {
        ConflictCause.SKIPPED: f"; {who} left out {expected}{expected.place} and continued with the next call",
        ConflictCause.EXTRA: f"; for {who} this is an extra call: the calls after it match",
        ConflictCause.ORDER: "",
        ConflictCause.SHAPE: "; the sizes must be equal",
        ConflictCause.DTYPE: "; the types must be equal",
    }[cause]


def _cause(odd: RankCalls, usual: RankCalls, number: int) -> tuple[ConflictCause, bool]:
    """Why two ranks differ at a number: what they called next distinguishes a skipped or an extra call from another order."""
    ours, theirs = _ahead(odd, number), _ahead(usual, number)
    skipped = len(theirs) > 1 and _agree(ours, theirs[1:])
    extra = len(ours) > 1 and _agree(ours[1:], theirs)
    swapped = len(ours) > 1 and len(theirs) > 1 and ours[0] == theirs[1] and ours[1] == theirs[0]
    if swapped and _agree(ours[2:], theirs[2:], least=0):
        return ConflictCause.ORDER, True
    if skipped != extra:
        return ConflictCause.SKIPPED if skipped else ConflictCause.EXTRA, True
    one, other = odd.op(number), usual.op(number)
    if one.name != other.name:
        rounds = _repeats(odd, number), _repeats(usual, number)
        return {(False, True): ConflictCause.SKIPPED, (True, False): ConflictCause.EXTRA}.get(
            rounds, ConflictCause.ORDER
        ), False
    return (ConflictCause.DTYPE if one.dtypes != other.dtypes else ConflictCause.SHAPE), not skipped


def _repeats(rank_calls: RankCalls, number: int) -> bool:
    """Whether a call is the same as the one before, at the same place: a loop goes round once more."""
    if number - 1 not in rank_calls.entries:
        return False
    one, before = rank_calls.op(number), rank_calls.op(number - 1)
    return (one.name, one.place) == (before.name, before.place) and (one.file is not None or one.sizes == before.sizes)


def _ahead(rank_calls: RankCalls, number: int) -> list[tuple[object, ...]]:
    numbers = sorted(n for n in rank_calls.entries if number <= n <= number + LOOK_AHEAD)
    return [
        (rank_calls.form(n), rank_calls.dump.ops[rank_calls.dump.op_of[rank_calls.entries[n][0]]].place)
        for n in numbers
    ]


def _agree(one: list[tuple[object, ...]], other: list[tuple[object, ...]], least: int = 1) -> bool:
    common = min(len(one), len(other))
    return common >= least and one[:common] == other[:common]
