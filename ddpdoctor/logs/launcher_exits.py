"""How processes ended, where a launcher reports it in one line: torchrun's first failure, srun, mpirun, mp.spawn, DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.log import Exit, LogLine, Who
from ddpdoctor.logs.context_patterns import CONTEXT_PATTERNS
from ddpdoctor.logs.line_prefix import short_host

__all__ = ["SIGNALS", "exits_in_lines"]

SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGPIPE": 13,
    "SIGTERM": 15,
    "SIGSYS": 31,
}

WORDS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Out Of Memory": 9,
}
"""How srun words the signal that ended a task."""

MOST_TASKS = 100_000
_AGENT = re.compile(r"torch[./]distributed[./](elastic|run|launcher)\b")
_ENDED_ALL = ("CANCELLED AT", "_step_signal: Terminating", "srun: Terminating ", "srun: Force Terminated")
"""After one of these lines, srun lists the tasks that it ended itself."""


def exits_in_lines(lines: Sequence[LogLine], rows: Sequence[Exit]) -> tuple[Exit, ...]:
    """The exits that `lines` report in one line each, without those that have a row of their own in torchrun's summary."""
    pids = {(row.source, row.who.pid) for row in rows}
    of_agents = bool(pids) or any(_AGENT.search(line.text) for line in lines)  # what srun and mpirun started then
    codes = {(line.source, line.number - 1): _code(found.groupdict()) for line, found in _exit_codes(lines)}
    cancelled: dict[int, bool] = {}  # whether the scheduler did it
    found: list[Exit] = []
    for line in lines:
        if any(words in line.text for words in _ENDED_ALL):
            cancelled[line.source] = cancelled.get(line.source, False) or "DUE TO" in line.text
        for each in _exits_of(line):
            is_agents = of_agents and each.by in ("srun", "mpirun")
            is_ended_by_srun = (
                each.by == "srun" and line.source in cancelled and (each.code < 0 or cancelled[line.source])
            )
            each = replace(each, code=codes.get((line.source, line.number), each.code))
            if (line.source, each.who.pid) not in pids and not is_agents and not is_ended_by_srun:
                found.append(each)
    return tuple(found)


def _exit_codes(lines: Sequence[LogLine]) -> Iterator[tuple[LogLine, re.Match[str]]]:
    """What mpirun prints in the line after the process that ended first."""
    known = [re.compile(CONTEXT_PATTERNS[name]) for name in ("exit_code", "signal_of_intel")]
    return ((line, found) for line in lines for each in known if (found := each.search(line.text)) is not None)


def _exits_of(line: LogLine) -> Iterator[Exit]:
    for by, known in _KNOWN:
        match = known.search(line.text)
        if match is None:
            continue
        fields = match.groupdict()
        code = _code(fields)
        if code:
            for who in _whos(line.who, fields):
                yield Exit(line.source, line.number, code, who, by, line.time)
        return


_KNOWN = tuple(
    (by, re.compile(CONTEXT_PATTERNS[name]))
    for by, name in (
        ("torchrun", "failed"),
        ("srun", "task_ended"),
        ("mpirun", "process_rank_ended"),
        ("mpirun", "first_process"),
        ("mpirun", "first_of_intel"),
        ("MPI", "abort_of_intel"),
        ("mp.spawn", "spawned_ended"),
        ("MPI", "mpi_abort"),
        ("Lightning", "child_of_lightning"),
        ("launcher", "died_with"),
        ("horovodrun", "process_ended"),
        ("composer", "rank_crashed"),
        ("torchrun", "event"),
        ("Kubernetes", "pod_ended"),
        ("Vertex", "replica"),
        ("SageMaker", "sagemaker"),
        ("DeepSpeed", "return_code"),
    )
)


def _code(fields: dict[str, str | None]) -> int:
    """The exit code, negative for a signal; shells say 128 + signal. MPI_ABORT prints its code on another line."""
    if not any(fields.get(name) for name in ("code", "signal")):
        return 1
    if fields.get("code") is not None:
        code = int(fields["code"] or 0)
        return 128 - code if 128 < code < 160 else code
    named = fields.get("signal") or ""
    if named.isdigit():
        return -int(named)
    if named.startswith("SIG"):
        return -SIGNALS.get(named, 0)
    return -WORDS.get(named, 0)


def _whos(who: Who, fields: dict[str, str | None]) -> Iterator[Who]:
    host = short_host(fields.get("host") or who.host or "") or None
    pid = int(fields["pid"] or 0) if fields.get("pid") else None
    if fields.get("tasks"):
        for task in _numbers(fields["tasks"] or ""):
            yield Who(host=host, task=task)
    elif fields.get("rank"):
        yield Who(rank=int(fields["rank"] or 0), host=host, pid=pid)
    elif local := fields.get("local") or fields.get("index"):
        yield Who(local_rank=int(local), host=host, pid=pid)
    else:
        yield Who(host=host)


def _numbers(text: str) -> Iterator[int]:
    """`2-7,9` as Slurm writes several tasks."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            count += 1
            if count > MOST_TASKS:
                return
            yield number
