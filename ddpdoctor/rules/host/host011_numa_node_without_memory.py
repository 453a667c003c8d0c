"""HOST011: a NUMA node that has no memory."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host, count_cpus
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.preconditions import need_gpus


@rule(
    "HOST011",
    "numa-node-without-memory",
    Severity.ERROR,
    signatures=(r"attaching to shared memory segment /dev/shm/nccl-\S* \(size 0\)",),
)
def check(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """A NUMA node has CPUs but no memory.

    ## Why it matters
    NCCL asks CUDA for host memory on the node of each GPU. Where that node has none, it fails with `Error while
    attaching to shared memory segment /dev/shm/nccl-… (size 0)`, which sends everybody to --shm-size: that does not
    help.

    ## Fix
    Set NCCL_CUMEM_HOST_ENABLE=0, or populate the memory channels of that socket.
    """
    need_gpus(gpu, 2)
    empty = [node for node in host.numa_nodes if count_cpus(node.cpus) and node.memory_bytes == 0]
    if not empty:
        return
    names = ", ".join(str(node.index) for node in empty)
    yield Finding(
        f"NUMA node {names} has CPUs ({', '.join(node.cpus for node in empty)}) but no memory: expected memory on every node",
        (Evidence(f"host.numa_nodes[{empty[0].index}].memory_bytes", "0", "more than 0"),),
        fix_command="export NCCL_CUMEM_HOST_ENABLE=0",
    )
