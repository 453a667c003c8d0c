"""Which rank of a stuck job is somewhere else than the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ddpdoctor.dumps.rank_activity import Activity, RankActivity, activity_of
from ddpdoctor.dumps.stacks import as_processes
from ddpdoctor.facts.hang import Hang, RankProcess
from ddpdoctor.light_dataclass import dataclass

__all__ = ["HungJob", "hung_jobs"]

BY_THEMSELVES = (Activity.STOPPED, Activity.TRACED, Activity.GONE)
"""Wrong whatever the others do."""
MAY_MOVE = (Activity.SLEEPING, Activity.CHILD, Activity.LOCK, Activity.INPUT, Activity.BUILD_LOCK, Activity.COMPILING)
"""Not the work of a step, even when the rank wakes up now and then."""


@dataclass(frozen=True, slots=True)
class HungJob:
    """The ranks of one job that were seen, on one node or several."""

    ranks: tuple[RankActivity, ...]

    @property
    def waiting(self) -> tuple[RankActivity, ...]:
        """Ranks that do not move and wait for others."""
        found = tuple(s for s in self.ranks if s.may_be_for_others and s.is_still)
        return _most_alike(found) or self._at_one_place()

    @property
    def outliers(self) -> tuple[RankActivity, ...]:
        """Ranks that are not where the others wait for them. Empty if no rank waits."""
        waiting = self.waiting
        if not waiting:
            return ()
        apart = (*BY_THEMSELVES, Activity.UNKNOWN)
        return tuple(
            s
            for s in self.ranks
            if s not in waiting
            and s.activity not in apart
            and (s.is_still or not s.may_be_for_others or self.is_outside(s))
        )

    def is_outside(self, each: RankActivity) -> bool:
        """Whether no thread of its Gloo is in a collective, while those of others are."""
        return each.process.runs_gloo is False and any(s.process.runs_gloo for s in self.ranks)

    def _at_one_place(self) -> tuple[RankActivity, ...]:
        """Most of the ranks, where they are at one line of the script: with GPUs that is where they wait for NCCL."""
        places: dict[object, list[RankActivity]] = defaultdict(list)
        for rank in self.ranks:
            if rank.frame is not None and rank.activity in (Activity.WAITING, Activity.COMPUTING):
                places[rank.frame].append(rank)
        most = max(places.values(), key=len, default=[])
        return tuple(most) if len(most) * 2 > len(self.ranks) > len(most) else ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have no process on a node where others of their job wait."""
        found: list[int] = []
        by_node: dict[str, list[RankProcess]] = defaultdict(list)
        for rank in self.ranks:
            by_node[rank.process.host].append(rank.process)
        for processes in by_node.values():
            found += _missing(processes)
        return tuple(sorted(found)) if self.waiting else ()

    def of(self, *activities: Activity) -> tuple[RankActivity, ...]:
        """The ranks that do one of these things."""
        return tuple(s for s in self.ranks if s.activity in activities)


def _most_alike(waiting: tuple[RankActivity, ...]) -> tuple[RankActivity, ...]:
    """Ranks that do not move, without the few that wait in another system call than most, where no stack shows more."""
    if any(s.process.runs_gloo for s in waiting):
        return tuple(s for s in waiting if s.process.runs_gloo is not False)
    kinds = Counter(map(_kind, waiting))
    usual = max(kinds, key=kinds.__getitem__, default=None)
    if usual is None or kinds[usual] * 2 <= len(waiting) or any(s.activity is Activity.COLLECTIVE for s in waiting):
        return waiting
    return tuple(each for each in waiting if _kind(each) == usual)


def _kind(each: RankActivity) -> tuple[Activity, bool]:
    return each.activity, "futex" in (each.process.call or each.process.wchan)


def is_stuck(each: RankActivity) -> bool:
    """Whether a rank that is elsewhere stays there, as opposed to one that is slow."""
    return each.activity in MAY_MOVE or (each.activity is not Activity.COMPUTING and each.is_still)


def hung_jobs(hang: Hang) -> tuple[HungJob, ...]:
    """The jobs whose ranks were seen, each with what its ranks do."""
    found: dict[object, list[RankActivity]] = defaultdict(list)
    for process in (*hang.processes, *as_processes(hang.stacks)):
        found[process.job or (process.host, process.world_size)].append(activity_of(process))
    return tuple(HungJob(tuple(sorted(each, key=_order))) for each in found.values())


def _missing(processes: Sequence[RankProcess]) -> Iterable[int]:
    """The numbers that one node lacks: its ranks follow each other, from the one with local_rank 0 on."""
    sizes = {p.local_world_size for p in processes}
    firsts = {p.rank - p.local_rank for p in processes if p.rank is not None and p.local_rank is not None}
    if any(p.rank is None for p in processes):
        return ()  # one whose rank /proc does not show
    if len(sizes) != 1 or len(firsts) != 1 or (size := next(iter(sizes))) is None:
        return ()
    first = next(iter(firsts))
    return {*range(first, first + size)} - {p.rank for p in processes if p.rank is not None}


def _order(each: RankActivity) -> tuple[int, str, int]:
    return (-1 if each.process.rank is None else each.process.rank, each.process.host, each.process.pid)
