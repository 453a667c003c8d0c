"""`lint FILE --show-processes`: the processes that a launch command or a job file would start, host by host."""

from __future__ import annotations

import os

from ddpdoctor.app.lint_lines import facts_of
from ddpdoctor.app.request import Request
from ddpdoctor.collectors.launch import LocalFiles
from ddpdoctor.collectors.launch_files import read_files
from ddpdoctor.facts.job import Job, Process
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.torchrun_options import NEWEST
from ddpdoctor.launch.evaluator.jobs import processes_of_job
from ddpdoctor.launch.jobs import job_of_launch
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import this_machine

__all__ = ["ShownJob", "imagined_processes"]

FILE_SECONDS = 30.0


@dataclass(frozen=True)
class ShownJob:
    """The processes of one job. `source` is its file or "launch line"; `is_certain` is False in a branch that may not run.

    `master` is `HOST:PORT` as far as it is known, `left_out` what was not understood of the file.
    """

    source: str
    processes: tuple[Process, ...]
    master: str
    is_certain: bool = True
    left_out: tuple[str, ...] = ()


def imagined_processes(request: Request, paths: list[str], nodes: list[str], torch: str | None) -> tuple[ShownJob, ...]:
    """The jobs of the launch command of the request, of the `--node` lines, and of these files, in this order."""
    facts = facts_of(request, nodes, torch)
    launch = facts.launch
    shown = []
    if launch is not None and launch.lines:
        job = job_of_launch(launch)
        shown.append(ShownJob("launch line", job.processes, _master(job)))
    version = launch.version if launch is not None else NEWEST
    environ = this_machine(request.timeout or FILE_SECONDS).environ
    files = read_files(paths, environ, version, os.getcwd(), LocalFiles())
    for path, jobs in files.jobs.items():
        left_out = files.left_out.get(path, ())
        shown += [ShownJob(path, processes_of_job(each), _master(each.job), each.is_certain, left_out) for each in jobs]
    return tuple(shown)


def _master(job: Job) -> str:
    """Where the processes join."""
    rendezvous = job.rendezvous
    if rendezvous.host:
        return f"{rendezvous.host}:{'?' if rendezvous.port is None else rendezvous.port}"
    environ = job.processes[0].environ if job.processes else {}
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "?")
    return f"{host}:{port}".replace(UNKNOWN, "?") if host else ""
