"""What triage examined: its inputs, the jobs in them, and one line that summarizes both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.app.open_ends import end_unknown
from ddpdoctor.examined import ExaminedInput, ExaminedJob, Verdict
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.log import Exit, InputKind, JobOutcome, Log, LogLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Report, Role, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.log_input import reason_against
from ddpdoctor.logs.log_pieces import time_in
from ddpdoctor.render.words import period_text
from ddpdoctor.wording import counted

__all__ = ["examined_inputs", "examined_job", "subject_of", "worst_first"]

_KINDS = {
    InputKind.TEXT: "log",
    InputKind.KERNEL: "kernel log",
    InputKind.ERROR_FILE: "error file",
    InputKind.BINARY: "unknown",
    InputKind.EMPTY: "unknown",
    InputKind.JSON: "unknown",
}
"""The report's word for a kind of input, where it differs from the kind's name."""
_WORST = (Verdict.FAIL, Verdict.WARN, Verdict.INCOMPLETE, Verdict.PASS)
_OUTCOMES = ("failed", "interrupted", "unknown", "completed")
"""Outcomes of jobs, the worst first."""
MOST_NAMED = 3
"""With more jobs, a table shows them, and the first line names none."""
_NUMBER = re.compile(r"(\d+)")


def examined_job(name: str, facts: Facts, report: Report) -> ExaminedJob:
    """One job as its log and dumps show it, with the verdict about it."""
    log, hang = facts.log or Log(), facts.hang
    first, last = _period(log)
    is_open = end_unknown(log, report)
    return ExaminedJob(
        name,
        _outcome(log, report),
        Verdict.INCOMPLETE if is_open and report.verdict is Verdict.PASS else report.verdict,
        tuple(sorted(_ranks(log, hang))),
        _hosts(log),
        first,
        last,
        _exit_code(log),
        is_open,
    )


def worst_first(job: ExaminedJob) -> tuple[int, int, list[tuple[int, str]]]:
    """The sort key of jobs: the worst verdict and outcome first, then by name, in numeric order."""
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(job.name)]
    return _WORST.index(job.verdict), _OUTCOMES.index(job.outcome), parts


def _outcome(log: Log, report: Report) -> str:
    """How the log says that the job ended; also "failed" if it shows only the cause of a failure.

    A log that ends with progress does not show whether the job still runs or was killed.
    """
    outcome = history_of(log).outcome
    if outcome not in (JobOutcome.UNKNOWN, JobOutcome.RUNNING):
        return str(outcome.value)
    has_cause = any(f.worst is Severity.ERROR and f.role is Role.CAUSE for f in report.findings)
    return str((JobOutcome.FAILED if has_cause else JobOutcome.UNKNOWN).value)


def _ranks(log: Log, hang: Hang | None) -> set[int]:
    ranks = {each.who.rank for each in (*log.heads, *log.spoken, *log.tails)} | {s.who.rank for s in log.sources}
    if hang is not None:
        ranks |= {dump.rank for dump in hang.dumps} | {stack.rank for stack in hang.stacks}
    return {rank for rank in ranks if rank is not None}


def _hosts(log: Log) -> tuple[str, ...]:
    hosts = {each.who.host for each in (*log.heads, *log.spoken, *log.tails)} | {s.who.host for s in log.sources}
    return tuple(sorted(host for host in hosts if host is not None))


def _period(log: Log) -> tuple[str | None, str | None]:
    """The first and the last time in the log, as it writes them; of lines without dates those in order."""
    printed: tuple[LogLine | Exit, ...] = (*log.heads, *log.lines, *log.tails, *log.exits)
    whole = [each for each in printed if each.time is not None]
    stamped = [(stamp, each.time) for each in whole if (stamp := time_in(each)) is not None]
    clocks = Counter(stamp.clock for stamp, _ in stamped)
    if not clocks:
        return (whole[0].time, whole[-1].time) if whole else (None, None)
    clock = clocks.most_common(1)[0][0]
    ordered = sorted(
        ((stamp.seconds, time) for stamp, time in stamped if stamp.clock == clock), key=lambda pair: pair[0]
    )
    return ordered[0][1], ordered[-1][1]


def _exit_code(log: Log) -> int | None:
    """The exit code that the scheduler or launcher prints for the first process that failed; None without one."""
    failed = history_of(log).failed_exits
    first = next((each for each in failed if each.is_first), failed[0] if failed else None)
    if first is not None:
        return first.code
    codes = [int(found["code"]) for _, found in context_lines(log, "exit_code")]
    return codes[-1] if codes else None


def examined_inputs(
    log: Log,
    jobs: Mapping[str, Sequence[int]],
    named: Iterable[str],
    parts: Sequence[tuple[Sequence[int], Facts]],
    unread: Mapping[str, str],
) -> tuple[ExaminedInput, ...]:
    """Every source of a log: what it is, which job it belongs to, and why it was not understood.

    Args:
        log: the whole log, before it was divided into jobs.
        jobs: the sources of each job.
        named: the inputs that the user named.
        parts: for each job the sources, and the facts in which who printed their lines is known.
        unread: why saved facts and reports could not be read, by file.
    """
    owners: dict[int, list[str]] = {}
    for job, sources in jobs.items():
        for source in sources:
            owners.setdefault(source, []).append(job)
    ranks = _ranks_of_sources(parts)
    problems = {**_problems_of_dumps(parts), **unread}
    given = set(named)
    return tuple(
        _attributed(
            _input(log, i, owners.get(i, []), ranks.get(i, set()), problems.get(source.name), source.name in given),
            len(jobs),
        )
        for i, source in enumerate(log.sources)
    )


def _attributed(examined: ExaminedInput, jobs: int) -> ExaminedInput:
    """Mark an input that may belong to any of several jobs."""
    is_open = examined.is_understood and examined.job is None and examined.reason is None
    is_of_job = examined.kind not in (InputKind.FACTS.value, InputKind.REPORT.value)
    return (
        replace(examined, reason=f"unknown which of the {jobs} jobs wrote it")
        if is_open and is_of_job and jobs > 1
        else examined
    )


def _input(
    log: Log, index: int, owners: Sequence[str], ranks: set[int], problem: str | None, is_named: bool
) -> ExaminedInput:
    source = log.sources[index]
    reason = source.problem if source.problem is not None and not source.lines else None
    reason = reason or problem or reason_against(log, index)
    is_understood = reason is None
    kind = _KINDS.get(source.kind, source.kind.value)
    if source.kind is InputKind.TEXT and not is_understood:
        kind = "unknown"
    if is_understood and (len(owners) > 1 or source.problem is not None):
        reason = source.problem or f"of {len(owners)} jobs: {', '.join(owners)}"
    return ExaminedInput(
        path=source.name,
        kind=kind,
        is_understood=is_understood,
        lines=source.lines if source.kind in (InputKind.TEXT, InputKind.KERNEL) or source.lines else None,
        ranks=tuple(sorted(ranks)),
        job=owners[0] if len(owners) == 1 and is_understood else None,
        reason=reason,
        is_named=is_named,
    )


def _ranks_of_sources(parts: Sequence[tuple[Sequence[int], Facts]]) -> dict[int, set[int]]:
    ranks_of_sources: dict[int, set[int]] = {}
    for sources, facts in parts:
        log, hang = facts.log or Log(), facts.hang
        spoken: tuple[LogLine, ...] = (*log.heads, *log.tails)
        for each in (*spoken, *log.spoken):
            if each.who.rank is not None and each.source < len(sources):
                ranks_of_sources.setdefault(sources[each.source], set()).add(each.who.rank)
        ranks = {dump.source: dump.rank for dump in hang.dumps} if hang is not None else {}
        for index, source in zip(sources, log.sources, strict=False):
            rank = ranks.get(source.name, source.who.rank)
            if rank is not None:
                ranks_of_sources.setdefault(index, set()).add(rank)
    return ranks_of_sources


def _problems_of_dumps(parts: Sequence[tuple[Sequence[int], Facts]]) -> dict[str, str]:
    """Why a dump could not be read, by file."""
    hangs = [facts.hang for _, facts in parts if facts.hang is not None]
    return {
        dump.source: dump.problem for hang in hangs for dump in hang.dumps if dump.problem is not None and not len(dump)
    }


def _of_outcome(jobs: Sequence[ExaminedJob], outcome: str, count: int) -> str:
    """`2 failed (slurm-4712, slurm-4714)`: failed jobs are named."""
    names = [job.name for job in jobs if job.outcome == outcome == "failed"] if len(jobs) <= MOST_NAMED else []
    named = f" ({', '.join(names)})" if names else ""
    return f"{count} {_word(outcome)}{named}"


def subject_of(inputs: Sequence[ExaminedInput], jobs: Sequence[ExaminedJob], files: int) -> str:
    """What was examined, in one line: `slurm-4712.out: 2 ranks, 20:25:26 to 20:25:41, exit 1`.

    Args:
        inputs: all inputs.
        jobs: the jobs that they show.
        files: the number of inputs that belong to these jobs.
    """
    read = [source for source in inputs if source.is_understood]
    if len(jobs) == 1:
        return f"{_named(read, jobs[0].name)}: {', '.join(_of_job(read, jobs[0]))}"
    if jobs:
        outcomes = Counter(job.outcome for job in jobs)
        words = ", ".join(_of_outcome(jobs, outcome, outcomes[outcome]) for outcome in _OUTCOMES if outcomes[outcome])
        return f"{len(jobs)} jobs in {counted(files, 'file')}: {words}"
    if len(inputs) == 1:
        own = inputs[0]
        return (
            f"{own.path}: {own.kind}, {counted(own.lines or 0, 'line')}"
            if own.is_understood
            else f"{own.path}: {own.reason}"
        )
    return f"{counted(len(inputs), 'file')}, {len(read)} understood"


def _named(read: Sequence[ExaminedInput], job: str) -> str:
    return read[0].path if len(read) == 1 else f"{job} in {counted(len(read), 'file')}"


def _of_job(read: Sequence[ExaminedInput], job: ExaminedJob) -> list[str]:
    lines = sum(each.lines or 0 for each in read)
    words = [counted(len(job.ranks), "rank") if job.ranks else counted(lines, "line")]
    if job.first is not None and job.last is not None:
        words.append(period_text(job.first, job.last))
    words.append(f"exit {job.exit_code}" if job.exit_code is not None else _word(job.outcome))
    return words


def _word(outcome: str) -> str:
    return "outcome unknown" if outcome == "unknown" else outcome
