"""Findings from the ranks of a stuck job: HOST014, LOG001, LOG004, LOG014, PROBE007 to PROBE010, SCRIPT071."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.dumps.outlier import HungJob, hung_jobs
from ddpdoctor.dumps.rank_activity import RankActivity
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.hang import Hang
from ddpdoctor.findings import Evidence, Finding, Severity, Where


@functools.lru_cache(maxsize=1)
def cached_jobs(hang: Hang) -> tuple[HungJob, ...]:
    return hung_jobs(hang)


def jobs_of(hang: Hang) -> tuple[HungJob, ...]:
    if not hang.processes and not hang.stacks:
        not_here("neither running ranks nor stacks were examined")
    return cached_jobs(hang)


def rank_finding(
    rank: RankActivity, message: str, fix_command: str | None = None, severity: Severity | None = None
) -> Finding:
    process = rank.process
    ranks = () if process.rank is None else (process.rank,)
    state = " ".join(part for part in (f"state {process.state}", process.call, process.wchan) if part)
    return Finding(
        message,
        (Evidence(f"hang.processes.{process.pid}", state, "in the collective with the others"),),
        fix_command=fix_command,
        where=Where(
            host=process.host or None,
            node_rank=process.node_rank,
            rank=process.rank,
            local_rank=process.local_rank,
            file=rank.frame.file if rank.frame is not None else None,
            line=rank.frame.line if rank.frame is not None else None,
        ),
        ranks=ranks,
        severity=severity,
    )


def waiting_ranks_text(job: HungJob) -> str:
    """`; ranks 0, 2 wait for it`, "" if no rank waits."""
    ranks = [s.process.rank for s in job.waiting if s.process.rank is not None]
    return f"; {ranges(ranks)} wait{'s' if len(ranks) == 1 else ''} for it" if ranks else ""


def outlier_findings(hang: Hang, wanted: Callable[[RankActivity], bool]) -> Iterator[Finding]:
    for job in jobs_of(hang):
        for rank in filter(wanted, job.outliers):
            if rank.may_be_for_others and job.is_outside(rank) and not rank.process.frames:
                yield rank_finding(rank, _outside(job, rank))
            elif rank.may_be_for_others and not job.is_outside(rank):
                yield rank_finding(rank, _unlike_most(job, rank), severity=Severity.WARNING)
            else:
                finding = rank_finding(rank, f"{rank.process.title} {rank.words}{waiting_ranks_text(job)}")
                yield finding if rank.frame is not None else replace(finding, fix=_fix_without_line(rank))


def _fix_without_line(rank: RankActivity) -> str:
    """The next step if no stack shows the line at which a rank is."""
    process = rank.process
    host = f" on {process.host}" if process.host else ""
    return f"Run `py-spy dump --pid {process.pid}`{host}: it shows the line at which the rank is."


def _outside(job: HungJob, rank: RankActivity) -> str:
    """The message for a rank without a stack, whose Gloo threads show that it is in no collective."""
    call = rank.process.call or rank.process.wchan
    waiting = ranges(ranks_of(s for s in job.waiting if s.process.runs_gloo))
    return (
        f"{rank.process.title} {rank.words} in {call}, outside all collectives; {waiting} are in one"
        f" (`py-spy dump --pid {rank.process.pid}` shows where it is)"
    )


def _unlike_most(job: HungJob, rank: RankActivity) -> str:
    """The message for a rank without a stack, in another system call than most."""
    ranks, call = ranges(ranks_of(job.waiting)), rank.process.call or rank.process.wchan
    return (
        f"{rank.process.title} {rank.words} in {call}, {ranks} in {job.waiting[0].process.call or 'the kernel'}; "
        f"{ranks} may wait for it (`py-spy dump --pid {rank.process.pid}` shows where it is)"
    )


def was_oom_killed(job: HungJob) -> bool:
    return any(rank.process.oom_kills for rank in job.ranks)


def process_gone_finding(job: HungJob, ranks: tuple[int, ...], more: str) -> Finding:
    hosts = {rank.process.host for rank in job.ranks}
    has = "has" if len(ranks) == 1 else "have"
    return Finding(
        f"{ranges(ranks)} {has} no process{more}{waiting_ranks_text(job)}",
        (Evidence("hang.processes", f"no process of {ranges(ranks)}", "a process per rank"),),
        where=Where(host=next(iter(hosts)) if len(hosts) == 1 else None, rank=ranks[0] if len(ranks) == 1 else None),
        ranks=ranks,
    )


def ranks_of(group: Iterable[RankActivity]) -> tuple[int, ...]:
    return tuple(sorted(member.process.rank for member in group if member.process.rank is not None))
