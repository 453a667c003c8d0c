"""The jobs of a triage: one row each, worst first, and the heading of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ddpdoctor.examined import ExaminedJob
from ddpdoctor.findings import Finding, Report, Role
from ddpdoctor.render.cells import cut
from ddpdoctor.render.plain import printable
from ddpdoctor.render.words import joined, listed, period_text
from ddpdoctor.wording import counted

__all__ = ["MOST_JOBS_IN_FULL", "job_heading", "job_table"]

MOST_JOBS_IN_FULL = 3
"""With more jobs, only the table is shown; `--job NAME` shows one job."""
LONGEST_NAME = 32

MARKS = {
    "failed": ("✗", "bold red"),
    "interrupted": ("!", "yellow"),
    "completed": ("✓", "green"),
    "running": ("…", "cyan"),
}
UNKNOWN = ("?", "magenta")


def job_table(report: Report, jobs: Sequence[ExaminedJob], width: int) -> Iterator[Text]:
    """One row per job: name, outcome, cause, place."""
    if not jobs:
        return
    if len(jobs) > MOST_JOBS_IN_FULL:
        yield Text("one job in full: add --job NAME", style="dim")
    longest = min(LONGEST_NAME, max(cell_len(printable(job.name)) for job in jobs))
    outcomes = {job.name: _outcome(job) for job in jobs}
    widest = max(map(len, outcomes.values()))
    for job in jobs:
        mark, style = MARKS.get(job.outcome, UNKNOWN)
        name = printable(job.name)
        row = Text(f"{mark} ", style=style).append(f"{name:<{longest}}  ", style="bold default")
        row.append(f"{outcomes[job.name]:<{widest}}  ", style="not bold default")
        cause = _cause(report, job)
        if cause is not None:
            room = width - cell_len(row.plain) - len(cause.code) - 2
            row.append(cut(printable(cause.text), room), style="not bold default")
            row.append(f"  {printable(cause.code)}", style="not bold default dim")
        yield row


def job_heading(job: ExaminedJob) -> Text:
    """`slurm-4712: 2 ranks on gpu-07, 20:25:26 to 20:25:41, exit 1`."""
    ranks = counted(len(job.ranks), "rank") if job.ranks else ""
    hosts = f"on {listed(job.hosts)}" if job.hosts else ""
    period = period_text(job.first, job.last) if job.first and job.last else ""
    words = joined((joined((ranks, hosts), " "), period, _outcome(job)), ", ")
    return Text(printable(job.name), style="bold").append(f": {printable(words)}", style="not bold")


def _outcome(job: ExaminedJob) -> str:
    return job.outcome + (f", exit {job.exit_code}" if job.exit_code else "")


def _cause(report: Report, job: ExaminedJob) -> Finding | None:
    of_job = (finding for finding in report.findings if finding.job == job.name)
    return next((finding for finding in of_job if finding.role is not Role.NOISE), None)
