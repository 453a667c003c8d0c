"""HOST006: an unlimited stack."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import UNLIMITED, Host
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus

FIXED = (2, 28)
"""The first NCCL that sets the stack size of its threads itself (NCCL_SET_CPU_STACK_SIZE)."""


@cause("HOST006", "stack-limit-unlimited", Severity.WARNING)
def stack_limit_unlimited(host: Host, gpu: Gpu, versions: Versions) -> Iterator[Finding]:
    """The stack limit is unlimited, which gives the threads of an older NCCL small stacks.

    ## Why it matters
    With `ulimit -s unlimited` glibc falls back to 2 MiB for each thread's stack. NCCL before 2.28 searches its
    graph recursively on such a thread, and may crash with a segmentation fault while communicators are created.

    ## Fix
    Set `ulimit -s 8192` in the script that starts the job, or install NCCL 2.28 or later.

    ## Example

        Fatal Python error: Segmentation fault

        # before
        ulimit -s unlimited
        torchrun --nproc-per-node 8 train.py
        # after
        ulimit -s 8192
        torchrun --nproc-per-node 8 train.py
    """
    need_gpus(gpu, 2)
    limit = host.need(host.limits.stack, "limits")
    if limit.soft != UNLIMITED:
        return
    version = versions.nccl.version if versions.nccl else None
    if version is None:
        not_here("the version of NCCL is unknown")
    if numbers(version) < FIXED:
        yield Finding(
            f"the stack limit is unlimited; NCCL {version} needs 8192 KiB",
            (Evidence("host.limits.stack.soft", "unlimited", "8 MiB"),),
            fix_command="ulimit -s 8192",
        )
