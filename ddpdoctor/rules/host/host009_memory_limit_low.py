"""HOST009: memory of the control group, and the address space of each process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import UNLIMITED, Cgroup, Host, local_ranks, readable, visible_gpus
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

GPU_BYTES = 16 << 30
"""Pinned buffers, DataLoader workers and checkpoints of one GPU."""
GPU_LEAST_BYTES = 2 << 30
CPU_LEAST_BYTES = 512 << 20
"""What a rank takes once torch is imported, with and without a CUDA context."""
SPACE_BYTES = 4 << 30
SPACE_LEAST_BYTES = 768 << 20
"""Addresses, most of which are never touched: torch's libraries and the stacks of its threads. It did not start with 650 MiB."""
GPU_SPACE_BYTES = 64 << 30
GPU_SPACE_LEAST_BYTES = 8 << 30
"""A CUDA context reserves addresses for the memory of the machine and of its GPUs at once."""


@rule(
    "HOST009",
    "memory-limit-low",
    Severity.ERROR,
    signatures=("oom[-_]kill event", "cgroup out-of-memory handler", "OOMKilled", r"task \d+: Out Of Memory"),
)
def check(host: Host, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The memory limit of the control group, or of each process, is too low for the ranks of this node.

    ## Why it matters
    The kernel kills a process of the group, exit code -9 or 137, `oom-kill event` or `OOMKilled`, while `free` shows
    plenty of memory on the node. Files in /dev/shm and the page cache count towards the limit. A limit of the address
    space (ulimit -v, h_vmem) shows as `failed to map segment from shared object`, `Memory allocation still failed` or
    `Resource temporarily unavailable`, on whichever rank came first.

    ## Fix
    Ask for more: --mem=0 (all of the node) in Slurm, docker run --memory, resources.limits.memory; or use fewer
    DataLoader workers. Do not limit addresses: ulimit -v unlimited.
    """
    gpus = visible_gpus(environ, gpu)
    found = tuple(_of_a_process(host, gpus))
    yield from found
    if found and host.cgroup is None:
        return
    yield from _of_the_group(host.need(host.cgroup, "cgroup"), gpus, local_ranks(environ, gpu) or 1)


def _of_a_process(host: Host, gpus: int) -> Iterator[Finding]:
    space = host.limits.address_space
    good, least = (GPU_SPACE_BYTES, GPU_SPACE_LEAST_BYTES) if gpus else (SPACE_BYTES, SPACE_LEAST_BYTES)
    if space is None or not space.is_below(good):
        return
    yield Finding(
        f"each process may use {readable(space.soft)} of addresses (ulimit -v): expected {readable(good)} or no limit",
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
    yield Finding(
        f"the control group may use {readable(limit)} of memory: expected {expected} for {ranks} rank{'s' * (ranks > 1)}"
        if limit < good
        else f"the kernel has killed {kills} processes of this control group at its limit of {readable(limit)} of memory: "
        "expected none",
        (
            Evidence("host.cgroup.memory_limit_bytes", readable(limit), expected),
            Evidence("host.cgroup.memory_oom_kills", str(kills), "0"),
        ),
        severity=None if limit < least else Severity.WARNING,
    )
