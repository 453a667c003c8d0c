"""HOST011: a NUMA node that has no memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host, count_cpus
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "HOST011",
    "numa-node-without-memory",
    Severity.ERROR,
    candidates=("HOST011", "HOST010"),
    signatures=(r"attaching to shared memory segment /dev/shm/nccl-\S* \(size 0\)",),
)
def numa_node_without_memory(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """A NUMA node has CPUs but no memory.

    ## Why it matters
    NCCL requests host memory from CUDA on the node of each GPU. If that node has none, it fails with `Error while
    attaching to shared memory segment /dev/shm/nccl-… (size 0)`, and --shm-size does not help.

    ## Fix
    Set NCCL_CUMEM_HOST_ENABLE=0, or populate the memory channels of that socket.

    ## Example

        NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-Qyo8Xv (size 0)

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        export NCCL_CUMEM_HOST_ENABLE=0
        torchrun --nproc-per-node 8 train.py
    """
    need_gpus(gpu, 2)
    host.need(host.numa_nodes or None, "numa_nodes")
    empty = [node for node in host.numa_nodes if count_cpus(node.cpus) and node.memory_bytes == 0]
    if not empty:
        return
    names = ", ".join(str(node.index) for node in empty)
    subject = f"NUMA nodes {names} have" if len(empty) > 1 else f"NUMA node {names} has"
    yield Finding(
        f"{subject} CPUs ({', '.join(node.cpus for node in empty)}) but no memory",
        (Evidence(f"host.numa_nodes[{empty[0].index}].memory_bytes", "0", "more than 0"),),
        fix_command="export NCCL_CUMEM_HOST_ENABLE=0",
    )


NO_HOST_MEMORY = (r"attaching to shared memory segment /dev/shm/nccl-\S* \(size 0\)",)


@numa_node_without_memory.look
def host_memory_not_shared(log: Log) -> Iterator[Finding]:
    """Host memory that CUDA allocates on a GPU's NUMA node did not reach the peer."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NO_HOST_MEMORY)
    if lines:
        title = "NCCL got no shared host memory from CUDA on this node"
        undetermined = (
            "Either a NUMA node has no memory (HOST011), or the container or kernel forbids NUMA calls (HOST010); "
            "`ddpdoctor check` on that node decides, and NCCL_CUMEM_HOST_ENABLE=0 avoids both"
        )
        yield finding_of(log, lines, title, undetermined, blames_speaker=True)
