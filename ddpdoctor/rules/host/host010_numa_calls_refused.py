"""HOST010: NUMA calls in a container."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus


@cause(
    "HOST010",
    "numa-calls-refused",
    Severity.NOTE,
    signatures=("cuMem host allocations do not appear to be working",),
)
def numa_calls_refused(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """The container forbids the system calls that place memory on NUMA nodes.

    ## Why it matters
    NCCL requests host memory near each GPU; if that is refused, it prints `cuMem host allocations do not appear to
    be working; falling back` and uses /dev/shm, which must then be large enough. NCCL 2.24 to 2.26.4 fail instead.

    ## Fix
    Start the container with --cap-add SYS_NICE (in Kubernetes, securityContext.capabilities.add), or set
    NCCL_CUMEM_HOST_ENABLE=0 for an older NCCL.

    ## Example

        NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation.

        # before
        docker run --gpus all IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all --cap-add SYS_NICE IMAGE torchrun --nproc-per-node 8 train.py
    """
    need_gpus(gpu, 2)
    if not host.need(host.numa_calls_allowed, "numa_calls_allowed"):
        yield Finding(
            f"this {f'{host.container} container' if host.container else 'sandbox'} forbids get_mempolicy;"
            " NCCL then needs /dev/shm",
            (Evidence("host.numa_calls_allowed", "false", "true"),),
            fix_command="docker run --cap-add SYS_NICE …" if host.container in ("docker", "podman") else None,
        )
