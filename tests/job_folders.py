"""Folders of logs for tests of how inputs are grouped into jobs: short outputs of launchers, ranks and schedulers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Report, Role

__all__ = ["banner", "causes", "died", "judged", "raised", "steps", "stopped_by_slurm", "write"]

STARS = "*" * 41


def banner(time_of_day: str = "09:14:02", pid: int = 41122) -> str:
    """What torchrun prints when it starts several ranks."""
    lead = f"W0412 {time_of_day}.113000 {pid} torch/distributed/run.py:793] "
    said = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid overloading it"
    return f"{lead}\n{lead}{STARS}\n{lead}{said}\n{lead}{STARS}\n"


def steps(count: int = 12, day: str = "2025-04-12", hour: int = 9, rank: int | None = None, minute: int = 0) -> str:
    """Progress of a job, a line per second."""
    lead = "" if rank is None else f"[rank{rank}]: "
    return "".join(
        f"{lead}{day} {hour:02}:{minute:02}:{second:02},113 INFO train.py:88 step {second} loss {9 - second / 10:.3f}\n"
        for second in range(count)
    )


def raised(error: str = "KeyError: 'momentum'", rank: int | None = 1, file: str = "/job/train.py") -> str:
    """The traceback of one rank."""
    lead = "" if rank is None else f"[rank{rank}]: "
    lines = ("Traceback (most recent call last):", f'  File "{file}", line 10, in <module>', "    main()")
    lines = (*lines, f'  File "{file}", line 7, in main', '    return cfg["momentum"]', error)
    return "".join(f"{lead}{line}\n" for line in lines)


def died(
    rank: int = 1, code: int = 1, pid: int = 881, hour: int = 9, day: str = "2025-04-12", host: str = "gpu-07"
) -> str:
    """torchrun's summary of a worker that failed."""
    signal = {-11: "Signal 11 (SIGSEGV)", -9: "Signal 9 (SIGKILL)"}.get(code)
    told = f"{signal} received by PID {pid}" if signal else "To enable traceback see: https://pytorch.org/docs"
    lead = f"E0412 {hour:02}:01:00.113000 {pid - 9} torch/distributed/elastic/multiprocessing/api.py:869] "
    return (
        f"{lead}failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: /opt/conda/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/conda/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent\n'
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : {day}_{hour:02}:01:00\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n"
        f"  traceback : {told}\n{'=' * 60}\n"
    )


def stopped_by_slurm(job: int, why: str = "DUE TO TIME LIMIT", host: str = "gpu-07", hour: int = 9) -> str:
    """Slurm's message when it ends a job."""
    return f"slurmstepd: error: *** JOB {job} ON {host} CANCELLED AT 2025-04-12T{hour:02}:30:00 {why} ***\n"


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def judged(folder: Path, files: Mapping[str, str], job: str | None = None) -> Report:
    """The report about a folder with these files."""
    write(folder, files)
    report, _ = triaged([str(folder)], Request(), started=time.monotonic(), job=job)
    assert not report.crashed, report.crashed
    return report


def causes(report: Report) -> dict[str, tuple[str, list[str]]]:
    """The outcome and the first cause of each job."""
    found = {}
    for job in report.jobs:
        own = [f.code for f in report.findings if f.job == job.name and f.role is Role.CAUSE]
        found[job.name] = (job.outcome, own[:1])
    return found
