"""Starts workers: one process per rank, or one process that forks a worker for each rank of this machine.

Imports almost nothing before the process runs: torch's import is the longest part of a probe, so it starts first.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.system.process import start
from ddpdoctor.system.selfexec import command

if TYPE_CHECKING:
    from ddpdoctor.probe.rank_env import RankEnv
    from ddpdoctor.probe.worker_handle import WorkerHandle

__all__ = ["COMPUTE", "FOLDERS", "TEMPLATE", "WORKER", "StartedWorker", "adopt", "begin", "run_probe", "take_over"]

WORKER = "ddpdoctor.probe.worker"
TEMPLATE = "ddpdoctor.probe.fork_template"
"""The module that imports torch once and forks a worker for each rank."""
FOLDERS = "DDPDOCTOR_FOLDERS"
"""The variable with the folders that the job searches first for modules: the script's and the launcher's."""
COMPUTE = "DDPDOCTOR_COMPUTE"
"""The variable that switches the probe's compute phase `on` or `off`; without it, the phase runs on GPUs."""


class StartedWorker(NamedTuple):
    """A process that imports torch; `pipes` are the supervisor's ends (messages, control, output) for each of its ranks."""

    process: subprocess.Popen[bytes]
    pipes: list[tuple[int, int, int]]


def begin(module: str, ranks: int = 1, environ: Mapping[str, str] = os.environ) -> StartedWorker:
    """Start a worker, or a template for several ranks: its import runs while the supervisor does everything else.

    Raises:
        OSError: no pipe or process can be created.
    """
    pipes = [(os.pipe(), os.pipe(), os.pipe()) for _ in range(ranks)]
    theirs = [(messages[1], control[0], output[1]) for messages, control, output in pipes]
    words = [",".join(map(str, fds)) for fds in theirs]
    process = start(
        [*command(module), str(os.getpid()), *words],
        _worker_environ(environ),
        stdout=theirs[0][2],
        stderr=theirs[0][2],
        fds=[fd for fds in theirs for fd in fds],
    )
    for fds in theirs:
        for fd in fds:
            os.close(fd)
    return StartedWorker(process, [(messages[0], control[1], output[0]) for messages, control, output in pipes])


def run_probe(
    module: str, words: Sequence[str], environ: Mapping[str, str] | None = None, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a supervisor that prints its facts on standard output; it inherits these descriptors.

    Raises:
        OSError: the process cannot be started.
    """
    return start([*command(module), *words], environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, fds=fds)


def adopt(begun: StartedWorker, places: Sequence[RankEnv]) -> list[WorkerHandle]:
    """Handles of the workers of a process, one for each of these ranks."""
    from ddpdoctor.probe.worker_handle import WorkerHandle

    workers = [WorkerHandle(rank_env, *fds) for rank_env, fds in zip(places, begun.pipes, strict=True)]
    for worker in workers:
        worker.process, worker.pid = begun.process, begun.process.pid
    return workers


def take_over(rank_env: RankEnv, messages: int, control: int, output: int, template: int) -> WorkerHandle:
    """The handle of one rank's worker that another process's template forks or has forked."""
    from ddpdoctor.probe.proc import ForeignProcess
    from ddpdoctor.probe.worker_handle import WorkerHandle

    worker = WorkerHandle(rank_env, messages, control, output)
    worker.process = ForeignProcess(template)
    worker.pid = template
    return worker


DIAGNOSTICS = {"NCCL_RUN_RAS_DIAGNOSTICS": "1"}
"""NCCL 2.31 and newer compare GPUs, drivers, ECC counters, NVLinks and settings of all ranks; older ones ignore the variable. The
active diagnostics (NCCL_RUN_DIAGNOSTICS) also measure the network with ib_write_bw, which takes longer than a probe may: whoever
sets the variable gets them."""


def _worker_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The rank's environment for its worker, with NCCL's warnings and choice of transports enabled on its output."""
    kept = {name: value for name, value in environ.items() if name != "NCCL_DEBUG_FILE"}
    return DIAGNOSTICS | kept | {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}
