"""What the ranks of a job that stands still show: HOST014, LOG001, LOG004, LOG014, PROBE007 to PROBE010, SCRIPT071."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.dumps.outlier import HungJob, hung_jobs, is_stuck
from ddpdoctor.dumps.rank_activity import Activity, RankActivity
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.hang import Hang
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import in_hangs

OWN_CODES = {
    Activity.COMPILING: "PROBE010",
    Activity.BUILD_LOCK: "HOST014",
    Activity.INPUT: "SCRIPT071",
}
"""What a rank does elsewhere and has a code of its own."""


@functools.lru_cache(maxsize=1)
def _jobs(hang: Hang) -> tuple[HungJob, ...]:
    return hung_jobs(hang)


def _of(hang: Hang) -> tuple[HungJob, ...]:
    if not hang.processes and not hang.stacks:
        not_here("neither running ranks nor stacks were looked at")
    return _jobs(hang)


def _finding(
    each: RankActivity, message: str, fix_command: str | None = None, severity: Severity | None = None
) -> Finding:
    process = each.process
    ranks = () if process.rank is None else (process.rank,)
    seen = " ".join(word for word in (f"state {process.state}", process.call, process.wchan) if word)
    return Finding(
        message,
        (Evidence(f"hang.processes.{process.pid}", seen, "in the collective with the others"),),
        fix_command=fix_command,
        where=Where(
            host=process.host or None,
            node_rank=process.node_rank,
            rank=process.rank,
            local_rank=process.local_rank,
            file=each.frame.file if each.frame is not None else None,
            line=each.frame.line if each.frame is not None else None,
        ),
        ranks=ranks,
        severity=severity,
    )


def _others(job: HungJob) -> str:
    """`; ranks 0, 2 wait for it`, "" when nobody does."""
    ranks = [s.process.rank for s in job.waiting if s.process.rank is not None]
    return f"; {ranges(ranks)} wait{'s' if len(ranks) == 1 else ''} for it" if ranks else ""


def _told(hang: Hang, wanted: Callable[[RankActivity], bool]) -> Iterator[Finding]:
    for job in _of(hang):
        for each in filter(wanted, job.outliers):
            if each.may_be_for_others and job.is_outside(each) and not each.process.frames:
                yield _finding(each, _outside(job, each))
            elif each.may_be_for_others and not job.is_outside(each):
                yield _finding(each, _unlike_most(job, each), severity=Severity.WARNING)
            else:
                yield _finding(each, f"{each.process.title} {each.words}{_others(job)}")


def _outside(job: HungJob, each: RankActivity) -> str:
    """Of a rank that no stack tells about, but its threads."""
    call = each.process.call or each.process.wchan
    return (
        f"{each.process.title} {each.words} in {call} outside of every collective: no thread of its Gloo runs one, as those of "
        f"{ranges(_ranks(s for s in job.waiting if s.process.runs_gloo))} do; py-spy would show where it is"
    )


def _unlike_most(job: HungJob, each: RankActivity) -> str:
    """Of a rank that no stack tells about."""
    ranks, call = ranges(_ranks(job.waiting)), each.process.call or each.process.wchan
    return (
        f"{each.process.title} {each.words} in {call}, {ranks} elsewhere in {job.waiting[0].process.call or 'the kernel'}: "
        f"{ranks} may wait for it; py-spy would show where each one is"
    )


@in_hangs("PROBE007")
def stopped(hang: Hang) -> Iterator[Finding]:
    """A rank in state T or t."""
    for job in _of(hang):
        for each in job.of(Activity.STOPPED, Activity.TRACED):
            command = f"kill -CONT {each.process.pid}" if each.activity is Activity.STOPPED else None
            yield _finding(each, f"{each.process.title} {each.words}{_others(job)}", command)


@in_hangs("PROBE008")
def behind(hang: Hang) -> Iterator[Finding]:
    """A rank that works while the others wait."""
    yield from _told(hang, lambda each: each.activity not in OWN_CODES and not is_stuck(each))


@in_hangs("PROBE009")
def outliers(hang: Hang) -> Iterator[Finding]:
    """A rank that waits for something else, or sits in the kernel."""
    yield from _told(hang, lambda each: each.activity not in (*OWN_CODES, Activity.KERNEL) and is_stuck(each))
    for job in _of(hang):
        for each in job.of(Activity.KERNEL):
            if each.is_still:
                advice = ": a file system or a driver that does not answer; no signal ends it"
                yield _finding(each, f"{each.process.title} {each.words}{advice}{_others(job)}")


@in_hangs("PROBE010")
def compiling(hang: Hang) -> Iterator[Finding]:
    """A rank that compiles while the others wait."""
    yield from _told(hang, lambda each: each.activity is Activity.COMPILING)


@in_hangs("HOST014")
def build_lock(hang: Hang) -> Iterator[Finding]:
    """A rank in torch's FileBaton."""
    yield from _told(hang, lambda each: each.activity is Activity.BUILD_LOCK)


@in_hangs("SCRIPT071")
def reads_input(hang: Hang) -> Iterator[Finding]:
    """A rank that waits for a person."""
    yield from _told(hang, lambda each: each.activity is Activity.INPUT)


@in_hangs("LOG004")
def dead(hang: Hang) -> Iterator[Finding]:
    """A rank without a process, or with one that has ended."""
    for job in _of(hang):
        for each in job.of(Activity.GONE):
            yield _finding(each, f"{each.process.title} {each.words}{_others(job)}")
        if job.missing and not _was_killed(job):
            yield _gone(job, job.missing, "")


@in_hangs("LOG014")
def killed(hang: Hang) -> Iterator[Finding]:
    """A rank without a process where the kernel has killed for want of memory."""
    for job in _of(hang):
        if job.missing and _was_killed(job):
            yield _gone(job, job.missing, "; the kernel has killed processes of its cgroup for want of memory")


def _was_killed(job: HungJob) -> bool:
    return any(each.process.oom_kills for each in job.ranks)


def _gone(job: HungJob, ranks: tuple[int, ...], more: str) -> Finding:
    hosts = {each.process.host for each in job.ranks}
    has = "has" if len(ranks) == 1 else "have"
    return Finding(
        f"{ranges(ranks)} {has} no process any more{more}{_others(job)}",
        (Evidence("hang.processes", f"no process of {ranges(ranks)}", "a process for every rank"),),
        where=Where(host=next(iter(hosts)) if len(hosts) == 1 else None, rank=ranks[0] if len(ranks) == 1 else None),
        ranks=ranks,
    )


@in_hangs("SCRIPT027")
def in_different_calls(hang: Hang) -> Iterator[Finding]:
    """Ranks that wait in collectives at different places of the script."""
    for job in _of(hang):
        places: dict[str, list[RankActivity]] = {}
        for each in job.waiting:
            if each.activity is Activity.COLLECTIVE and each.frame is not None:
                places.setdefault(str(each.frame), []).append(each)
        if len(places) > 1 and len(job.waiting) == len(job.ranks):
            yield _unlike(sorted(places.items(), key=lambda item: len(item[1])))


def _unlike(places: list[tuple[str, list[RankActivity]]]) -> Finding:
    parts = [f"{ranges(_ranks(group))} in a collective at {place}" for place, group in places]
    odd = _ranks(places[0][1])
    is_tie = len(places[0][1]) == len(places[-1][1])
    blamed = tuple(sorted(rank for _, group in places for rank in _ranks(group))) if is_tie else odd
    frame = places[0][1][0].frame
    return Finding(
        f"{'; '.join(parts[:4])}: they wait for each other, in another order or in a call that only some make",
        where=Where(
            rank=blamed[0] if len(blamed) == 1 else None,
            file=frame.file if frame else None,
            line=frame.line if frame else None,
        ),
        ranks=blamed,
    )


def _ranks(group: Iterable[RankActivity]) -> tuple[int, ...]:
    return tuple(sorted(each.process.rank for each in group if each.process.rank is not None))


@in_hangs("LOG001")
def all_wait(hang: Hang) -> Iterator[Finding]:
    """All ranks that were seen wait alike: the one that is missing is somewhere else."""
    for job in _of(hang):
        waiting = job.of(Activity.COLLECTIVE)
        if not waiting or len(job.waiting) < len(job.ranks) or job.missing:
            continue
        if len({str(each.frame) for each in waiting}) > 1:
            continue
        world = waiting[0].process.world_size
        seen = len(job.ranks)
        where = f" at {waiting[0].frame}" if waiting[0].frame is not None else ""
        more = (
            "none is elsewhere; a network or a GPU that does not answer, or calls that do not fit: the dumps tell"
            if seen == world
            else f"{seen} of {world} ranks were seen; the rank to blame is on another node: run ddpdoctor hang there"
        )
        yield Finding(
            f"{ranges(_ranks(waiting))} all wait in a collective{where}; {more}",
            (Evidence("hang.processes", f"{seen} ranks in a collective", "one that is elsewhere"),),
            severity=Severity.WARNING,
        )
