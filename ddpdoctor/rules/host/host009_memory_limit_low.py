"""HOST009: memory of the control group, and the address space of each process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import UNLIMITED, Cgroup, Host, local_ranks, readable, visible_gpus
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, is_known
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import bytes_of, container_of
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.launch.task_counts import option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point, revalue, shown
from ddpdoctor.rules.launch.scheduler.granted import granted_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

GPU_BYTES = 16 << 30
"""Pinned buffers, DataLoader workers, and checkpoints of one GPU."""
GPU_LEAST_BYTES = 2 << 30
CPU_LEAST_BYTES = 512 << 20
"""What a rank uses once torch is imported, with and without a CUDA context."""
SPACE_BYTES = 4 << 30
SPACE_LEAST_BYTES = 768 << 20
"""Addresses, most of them never used: torch's libraries and the stacks of its threads. It did not start with 650 MiB."""
GPU_SPACE_BYTES = 64 << 30
GPU_SPACE_LEAST_BYTES = 8 << 30
"""A CUDA context reserves addresses for the memory of the machine and of its GPUs at once."""


@cause(
    "HOST009",
    "memory-limit-low",
    Severity.ERROR,
    signatures=("oom[-_]kill event", "cgroup out-of-memory handler", "OOMKilled", r"task \d+: Out Of Memory"),
)
def memory_limit_low(host: Host, environ: Environ, gpu: Gpu | None = None, job: Job | None = None) -> Iterator[Finding]:
    """The memory limit of the cgroup or of each process is too low for the ranks.

    ## Why it matters
    The kernel kills a process of the group (exit code -9 or 137, `oom-kill event`, `OOMKilled`) while `free` still
    shows free memory on the node; files in /dev/shm and the page cache count toward the limit. A limit of the address
    space (ulimit -v, h_vmem) shows as `failed to map segment from shared object`, `Memory allocation still failed`, or
    `Resource temporarily unavailable`, on whichever rank reaches it first.

    ## Fix
    Request more memory: --mem=0 (all of the node) in Slurm, `docker run --memory`, or resources.limits.memory in
    Kubernetes; or use fewer DataLoader workers. Remove limits of the address space with `ulimit -v unlimited`.

    ## Example

        slurmstepd: error: Detected 1 oom_kill event in StepId=4712.0. Some of the step tasks have been OOM Killed.

        # before
        #SBATCH --mem=4G
        # after: all memory of the node
        #SBATCH --mem=0
    """
    gpus = visible_gpus(environ, gpu)
    of_a_process = tuple(_of_a_process(host, gpus))
    yield from of_a_process
    if of_a_process and host.cgroup is None:
        return
    ranks = local_ranks(environ, gpu, job) or 1
    if job is not None and job.ranks_per_node is not None:
        gpus = min(gpus, ranks)
    yield from _of_the_group(host.need(host.cgroup, "cgroup"), gpus, ranks)


def _of_a_process(host: Host, gpus: int) -> Iterator[Finding]:
    space = host.limits.address_space
    good, least = (GPU_SPACE_BYTES, GPU_SPACE_LEAST_BYTES) if gpus else (SPACE_BYTES, SPACE_LEAST_BYTES)
    if space is None or not space.is_below(good):
        return
    yield Finding(
        f"ulimit -v allows each process {readable(space.soft)} of addresses; {readable(good)} or more are needed",
        (Evidence("host.limits.address_space.soft", readable(space.soft), "unlimited"),),
        fix_command="ulimit -v unlimited",
        severity=None if space.is_below(least) else Severity.WARNING,
    )


def _of_the_group(cgroup: Cgroup, gpus: int, ranks: int) -> Iterator[Finding]:
    limit = cgroup.memory_limit_bytes
    if limit is None or limit == UNLIMITED:
        return
    least = ranks * (GPU_LEAST_BYTES if gpus else CPU_LEAST_BYTES)
    good = max(gpus * GPU_BYTES, least)
    kills = cgroup.memory_oom_kills or 0
    if limit >= good and not kills:
        return
    expected = f"at least {readable(good)}"
    need = f"{ranks} rank{'s need' if ranks > 1 else ' needs'} {readable(good)} or more"
    killed = f"the kernel killed {kills} process{'es' * (kills > 1)} at the cgroup's memory limit of {readable(limit)}"
    yield Finding(
        f"the cgroup's memory limit is {readable(limit)}; {need}" if limit < good else killed,
        (
            Evidence("host.cgroup.memory_limit_bytes", readable(limit), expected),
            Evidence("host.cgroup.memory_oom_kills", str(kills), "0"),
        ),
        severity=None if limit < least else Severity.WARNING,
    )


@memory_limit_low.look
def limited(launch: Launch) -> Iterator[Finding]:
    """A memory limit of a container, a pod, or a batch job below what its ranks use once torch is imported."""
    for line in launch.lines:
        limit, given, source = _memory(line)
        ranks = ranks_here(line)
        if limit is None or not ranks:
            continue
        least = ranks * (GPU_LEAST_BYTES if _has_gpus(line) else CPU_LEAST_BYTES)
        if limit >= least:
            continue
        need = f"{ranks} rank{'s need' if ranks > 1 else ' needs'} {readable(least)} or more"
        text = f"{source} allows {readable(limit)} of memory; {need}"
        label = f"allow at least {readable(least)}"
        severity = None if limit < least // 2 else Severity.WARNING
        here = given is not None and given.value_word in line.argv
        edits: list[SpanEdit] | None = None
        if given is not None and here:
            slurm = line.layer(LauncherKind.CONTAINER) is None
            edits = [revalue(given, "0" if slurm else f"{ranks * 16}g")] if given.flag != "--mem-per-cpu" else None
        place = None if line.pod is None else line.pod.memory_at
        finding = point(
            launch,
            line,
            given.value_word if given is not None and here else None,
            text,
            readable(least),
            edits,
            label=label,
            severity=severity,
        )
        if place is not None:
            where = Where(file=line.file, line=place.line, column=place.column)
            finding = Finding(text, finding.evidence, where=where, severity=severity, label=label)
        yield finding


def _memory(line: LaunchLine) -> tuple[int | None, Given | None, str]:
    """The memory that all ranks of a node can use together, and what sets the limit."""
    if line.pod is not None:
        return line.pod.memory_bytes, None, "the container's limit"
    container = container_of(line)
    if container is not None:
        given = container.memory
        return (bytes_of(given.value), given, shown(given.word)) if given is not None else (None, None, "")
    if line.layer(LauncherKind.CONTAINER) is not None:
        return None, None, ""
    for layer in (line.layer(LauncherKind.SRUN), line.batch):
        given = option(layer, ("--mem",))
        if given is not None and is_known(given.value):
            size = bytes_of(given.value, "m")
            return (size or None), given, f"--mem={given.value}"
    return None, None, ""


def _has_gpus(line: LaunchLine) -> bool:
    container = container_of(line)
    if container is not None:
        return container.gpus is not None
    return bool(granted_gpus(line)[0])
