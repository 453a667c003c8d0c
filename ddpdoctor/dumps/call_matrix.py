"""The calls of all ranks side by side, by process group and sequence number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field

from ddpdoctor.facts.hang import SYMMETRIC, Call, CallState, Dump, Operation, ProcessGroup
from ddpdoctor.light_dataclass import dataclass

__all__ = ["CallForm", "CallMatrix", "GroupKey", "RankCalls"]

UNEVEN = frozenset(("all_to_all", "all_to_all_single", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v"))
"""Collectives whose sizes may differ from rank to rank."""
ONE_SIDED = frozenset(("gather", "scatter"))
"""Collectives in which only one rank has the whole input or output."""

OVER = frozenset(state.value for state in CallState if state.is_over)

GroupKey = tuple[str, str, str, tuple[int, ...]]
CallForm = tuple[int, ...]
"""What must be equal on all ranks: the collectives under one sequence number, a number for each name, sizes and types."""


@dataclass(slots=True)
class RankCalls:
    """One rank in one group: the entries of its dump by sequence number, and the last number that it entered."""

    dump: Dump
    group: ProcessGroup
    forms: Sequence[int]
    entries: dict[int, list[int]] = field(default_factory=dict)
    newest: int = -1
    newest_over: int = -1

    def add(self, sequence: int, index: int, state: str) -> None:
        """Take in an entry of the dump."""
        self.entries.setdefault(sequence, []).append(index)
        if sequence > self.newest:
            self.newest = sequence
        if sequence > self.newest_over and state in OVER:
            self.newest_over = sequence

    @property
    def first_open(self) -> int | None:
        """The number that the rank waits in: a group's calls end in order, what was called later is queued behind it.

        An open one before one that ended is a part of a coalesced call, which has no state of its own.
        """
        return min((number for number in self.entries if number > self.newest_over), default=None)

    @property
    def last(self) -> int:
        """The last number that the rank entered, recorded or not (monitored_barrier is not); 0 for none."""
        return max(self.newest, self.group.enqueued or 0, 0)

    def call(self, sequence: int) -> Call | None:
        """The call under a number, the last one of a coalesced group; None when it is not recorded."""
        entries = self.entries.get(sequence)
        return self.dump.call(entries[0]) if entries else None

    def op(self, sequence: int) -> Operation:
        """The first call under a number that is recorded."""
        return self.dump.ops[self.dump.op_of[self.entries[sequence][0]]]

    def form(self, sequence: int) -> CallForm:
        """What must be the same on the other ranks."""
        return tuple([self.forms[self.dump.op_of[index]] for index in self.entries[sequence]])

    def is_over(self, sequence: int) -> bool:
        """Whether all calls under a number ended without an error; one that is not recorded counts as ended."""
        states = self.dump.states
        return OVER.issuperset([states[index] for index in self.entries.get(sequence, ())])

    @property
    def furthest(self) -> int:
        """The last call that needs all ranks and that this one has certainly left; 0 for none."""
        numbers = sorted((n for n in self.entries if n <= self.newest_over), reverse=True)
        return next((n for n in numbers if self._came_out(n)), 0)

    def _came_out(self, number: int) -> bool:
        return self.is_over(number) and self.op(number).name in SYMMETRIC and not self.may_have_failed(number)

    def may_have_failed(self, sequence: int) -> bool:
        """Gloo retires a call that failed like one that went well: its rank's last one, that needs all, may be either."""
        call = self.call(sequence) if sequence == self.newest else None
        return call is not None and call.state is CallState.RETIRED and call.op.name in SYMMETRIC


def _form(op: Operation) -> tuple[object, ...]:
    numel = None if op.name in UNEVEN | ONE_SIDED else (op.input_numel, op.output_numel)
    return op.name, numel, None if op.name in ONE_SIDED else op.dtypes


def _ranks_behind(by_rank: dict[int, RankCalls]) -> tuple[frozenset[int], bool]:
    """The ranks whose last call comes before one that another rank came out of, and that it must have entered since; and
    whether the job still moved when the others were dumped. It did not where all of them wait in one call.
    """
    whole = {
        rank: rank_calls
        for rank, rank_calls in by_rank.items()
        if rank_calls.entries and rank_calls.dump.problem is None
    }
    furthest = max((rank_calls.furthest for rank_calls in whole.values()), default=0)
    early = frozenset(rank for rank, rank_calls in whole.items() if rank_calls.last < furthest)
    others = {rank_calls.first_open for rank, rank_calls in whole.items() if rank not in early}
    return early, len(others) > 1 or None in others


class CallMatrix:
    """All collectives, by group and rank, and the sends and receives that are open."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.dumps = {d.rank: d for d in dumps if d.rank is not None}
        self.world = max((d.world_size or 0 for d in dumps), default=0)
        self.by_group: dict[GroupKey, dict[int, RankCalls]] = defaultdict(dict)
        self.messages: dict[int, list[Call]] = {}
        forms: dict[tuple[object, ...], int] = {}
        for rank, dump in sorted(self.dumps.items()):
            self._add_dump(rank, dump, [forms.setdefault(_form(op), len(forms)) for op in dump.ops])
        found = [_ranks_behind(by_rank) for by_rank in self.by_group.values()]
        self.early = frozenset(rank for early, _ in found for rank in early)
        """Ranks whose dumps are of an earlier moment than another's, or of an earlier run."""
        self.older = frozenset(rank for early, moves in found if moves for rank in early)
        """Those for which nothing can be said, as the job still moved."""

    def _add_dump(self, rank: int, dump: Dump, forms: Sequence[int]) -> None:
        by_rank = [self.by_group[group.key].setdefault(rank, RankCalls(dump, group, forms)) for group in dump.groups]
        messages: dict[tuple[int, str, int], list[Call]] = defaultdict(list)
        columns = zip(dump.sequences, dump.group_of, dump.op_of, dump.states, dump.p2p, strict=True)
        for index, (sequence, group, place, state, is_p2p) in enumerate(columns):
            if not is_p2p:
                by_rank[group].add(sequence, index, state)
                continue
            op = dump.ops[place]
            if op.peer is not None:
                still_open = messages[group, op.name, op.peer]
                if state in OVER:
                    still_open.clear()  # messages from one rank to another end in order as well
                else:
                    still_open.append(dump.call(index))
        self.messages[rank] = [call for still_open in messages.values() for call in still_open]

    def members(self, key: GroupKey) -> tuple[int, ...]:
        """The ranks of a group: as the dumps say, else all that were seen in it; the default group has all ranks."""
        by_rank = self.by_group[key]
        groups = [rank_calls.group for rank_calls in by_rank.values()]
        group = next((each for each in groups if each.ranks), groups[0])
        if group.ranks:
            return group.ranks
        return tuple(sorted({*self.dumps, *range(self.world)} if group.is_default else by_rank))

    def not_entered(self, key: GroupKey, number: int) -> tuple[int, ...]:
        """The members of a group that have not entered this number: those without a dump as well."""
        by_rank = self.by_group[key]
        return tuple(rank for rank in self.members(key) if self._is_behind(by_rank.get(rank), rank, number))

    def _is_behind(self, rank_calls: RankCalls | None, rank: int, number: int) -> bool:
        if rank not in self.dumps:
            return True
        if self.dumps[rank].problem is not None or rank in self.older:
            return False  # its last entries are missing
        if rank_calls is None or not (rank_calls.entries or rank_calls.group.enqueued):
            return not self.dumps[rank].has_wrapped  # else the ring may have forgotten it
        return rank_calls.last < number

    def completed_elsewhere(self, key: GroupKey, number: int) -> bool:
        """Whether a rank has come out of a call that needs all: a dump is not taken at one moment everywhere."""
        calls = (rank_calls.call(number) for rank_calls in self.by_group[key].values())
        return any(call is not None and call.state.is_over and call.op.name in SYMMETRIC for call in calls)

    def peer(self, call: Call) -> int:
        """The global rank at the other end of a send or recv."""
        peer = call.op.peer or 0
        return call.group.ranks[peer] if peer < len(call.group.ranks) else peer

    def other_end(self, rank: int, call: Call) -> Call | None:
        """What the rank at the other end of an open send or recv has posted for it."""
        names = {"send", "recv"} - {call.op.name}
        theirs = self.messages.get(self.peer(call), ())
        return next((each for each in theirs if each.op.name in names and self.peer(each) == rank), None)

    def last_call(self, rank: int) -> Call | None:
        """The last entry of a rank."""
        dump = self.dumps[rank]
        return dump.call(len(dump) - 1) if len(dump) else None
