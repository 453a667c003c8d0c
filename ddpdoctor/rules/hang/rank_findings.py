"""What the ranks of a job that stands still show: HOST014, LOG001, LOG004, LOG014, PROBE007 to PROBE010, SCRIPT071."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

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
        not_here("neither running ranks nor stacks were looked at")
    return cached_jobs(hang)


def rank_finding(
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


def waiting_ranks_text(job: HungJob) -> str:
    """`; ranks 0, 2 wait for it`, "" when nobody does."""
    ranks = [s.process.rank for s in job.waiting if s.process.rank is not None]
    return f"; {ranges(ranks)} wait{'s' if len(ranks) == 1 else ''} for it" if ranks else ""


def outlier_findings(hang: Hang, wanted: Callable[[RankActivity], bool]) -> Iterator[Finding]:
    for job in jobs_of(hang):
        for each in filter(wanted, job.outliers):
            if each.may_be_for_others and job.is_outside(each) and not each.process.frames:
                yield rank_finding(each, _outside(job, each))
            elif each.may_be_for_others and not job.is_outside(each):
                yield rank_finding(each, _unlike_most(job, each), severity=Severity.WARNING)
            else:
                yield rank_finding(each, f"{each.process.title} {each.words}{waiting_ranks_text(job)}")


def _outside(job: HungJob, each: RankActivity) -> str:
    """Of a rank that no stack tells about, but its threads."""
    call = each.process.call or each.process.wchan
    return (
        f"{each.process.title} {each.words} in {call} outside of every collective: no thread of its Gloo runs one, as those of "
        f"{ranges(ranks_of(s for s in job.waiting if s.process.runs_gloo))} do; py-spy would show where it is"
    )


def _unlike_most(job: HungJob, each: RankActivity) -> str:
    """Of a rank that no stack tells about."""
    ranks, call = ranges(ranks_of(job.waiting)), each.process.call or each.process.wchan
    return (
        f"{each.process.title} {each.words} in {call}, {ranks} elsewhere in {job.waiting[0].process.call or 'the kernel'}: "
        f"{ranks} may wait for it; py-spy would show where each one is"
    )


def was_oom_killed(job: HungJob) -> bool:
    return any(each.process.oom_kills for each in job.ranks)


def process_gone_finding(job: HungJob, ranks: tuple[int, ...], more: str) -> Finding:
    hosts = {each.process.host for each in job.ranks}
    has = "has" if len(ranks) == 1 else "have"
    return Finding(
        f"{ranges(ranks)} {has} no process any more{more}{waiting_ranks_text(job)}",
        (Evidence("hang.processes", f"no process of {ranges(ranks)}", "a process for every rank"),),
        where=Where(host=next(iter(hosts)) if len(hosts) == 1 else None, rank=ranks[0] if len(ranks) == 1 else None),
        ranks=ranks,
    )


def ranks_of(group: Iterable[RankActivity]) -> tuple[int, ...]:
    return tuple(sorted(each.process.rank for each in group if each.process.rank is not None))
