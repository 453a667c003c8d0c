"""HOST009: memory of the control group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import UNLIMITED, Host, local_ranks, readable, visible_gpus
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

GPU_BYTES = 16 << 30
"""Pinned buffers, DataLoader workers and checkpoints of one GPU."""
GPU_LEAST_BYTES = 2 << 30
CPU_LEAST_BYTES = 512 << 20
"""What a rank takes once torch is imported, with and without a CUDA context."""


@rule(
    "HOST009",
    "memory-limit-low",
    Severity.ERROR,
    signatures=("oom[-_]kill event", "cgroup out-of-memory handler", "OOMKilled", r"task \d+: Out Of Memory"),
)
def check(host: Host, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The memory limit of the control group is too low for the ranks of this node.

    ## Why it matters
    The kernel kills a process of the group, exit code -9 or 137, `oom-kill event` or `OOMKilled`, while `free` shows
    plenty of memory on the node. Files in /dev/shm and the page cache count towards the limit.

    ## Fix
    Ask for more: --mem=0 (all of the node) in Slurm, docker run --memory, resources.limits.memory; or use fewer
    DataLoader workers.
    """
    cgroup = host.need(host.cgroup, "cgroup")
    limit = cgroup.memory_limit_bytes
    if limit is None or limit == UNLIMITED:
        return
    gpus, ranks = visible_gpus(environ, gpu), local_ranks(environ, gpu) or 1
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
