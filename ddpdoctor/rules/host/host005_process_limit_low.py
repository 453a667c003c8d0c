"""HOST005: the limit of processes and threads."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import UNLIMITED, Host, local_ranks
from ddpdoctor.facts.job import Job
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

COMFORTABLE_A_GPU = 512
"""Ranks with GPUs start DataLoader workers, each with its own threads."""


@cause(
    "HOST005",
    "process-limit-low",
    Severity.ERROR,
    signatures=(
        "(pthread_create|hread creation) failed",
        "can't start new thread",
        "Failed to create new thread",
        "fork: retry: (No child processes|Resource temporarily unavailable)",
        r"what\(\): +(thread: )?Resource temporarily unavailable",
        r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        r"OSError: \[Errno 11\] Resource temporarily unavailable",
        r"error while creating worker thread #\d+ pthread_create returns 11\b",
    ),
)
def process_limit_low(
    host: Host, environ: Environ, gpu: Gpu | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The limit of processes and threads leaves too few for this job.

    ## Why it matters
    Every thread counts: a rank with a GPU starts about 50, a DataLoader worker several, OpenMP one per core. At the
    limit torch fails with `can't start new thread` and OpenBLAS with `pthread_create failed`, which looks like a
    memory problem.

    ## Fix
    Raise `ulimit -u` and the pids limit of the container (`docker run --pids-limit=-1`, podPidsLimit of the
    kubelet), or start fewer threads with OMP_NUM_THREADS=1 and fewer workers.

    ## Example

        RuntimeError: can't start new thread

        # before
        docker run --pids-limit=256 IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --pids-limit=-1 IMAGE torchrun --nproc-per-node 8 train.py
    """
    ranks, has_gpu = local_ranks(environ, gpu, job) or 1, gpu is not None and bool(gpu.devices)
    threads = 1 if ranks > 1 else host.cpus_allowed or 1  # torchrun gives each of several ranks one OpenMP thread
    least = ranks * ((50 if has_gpu else 12) + (environ.integer("OMP_NUM_THREADS") or threads))
    good = ranks * COMFORTABLE_A_GPU if has_gpu else least
    found = [limit for limit in _limits(host) if limit[2] < max(least, good)]
    if not found:
        _need_limits(host)
    for path, what, free in found:
        expected = least if free < least else good
        yield Finding(
            f"{what} allows {free} more; {ranks} rank{'s need' if ranks > 1 else ' needs'} {expected} or more",
            (Evidence(path, str(free), f"at least {expected}"),),
            severity=None if free < least else Severity.WARNING,
        )


def _need_limits(host: Host) -> None:
    """Skip the rule where a limit that may bind was not read; a machine without control groups has none of theirs."""
    host.need(host.limits.processes, "limits")
    gap = host.gap("cgroup")
    if gap is None or gap.why is not Why.NOT_HERE:
        host.need(host.cgroup, "cgroup")


def _limits(host: Host) -> Iterator[tuple[str, str, int]]:
    """(path, what, how many more threads can start) of the limits that apply."""
    cgroup, processes = host.cgroup, host.limits.processes
    if cgroup is not None and cgroup.pids_limit not in (None, UNLIMITED):
        assert cgroup.pids_limit is not None
        what = f"the cgroup's limit of {cgroup.pids_limit} processes"
        yield "host.cgroup.pids_limit", what, max(0, cgroup.pids_limit - (cgroup.pids_used or 0))
    if processes is not None and processes.soft != UNLIMITED and not host.is_root:
        what = f"the limit of {processes.soft} processes (ulimit -u)"
        yield "host.limits.processes.soft", what, max(0, processes.soft - (host.user_threads or 0))
