"""TOPO025: a process bound to CPUs far from its GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host, cpus_in
from ddpdoctor.facts.topo import Topo
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


@cause("TOPO025", "cpu-affinity-remote", Severity.WARNING)
def cpu_affinity_remote(topo: Topo, host: Host, gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """The process may run only on CPUs far from its GPU.

    ## Why it matters
    Host buffers and threads are on the other socket: the bandwidth is lower, and nothing is printed.

    ## Fix
    Bind each rank to the NUMA node of its GPU, on every node: `torchrun --numa-binding=node …`, or numactl.

    ## Example
    ddpdoctor's message:

        CPUs 0-31 of this process are far from GPU 4 (near CPUs 32-63)

    The launch command on every node:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        torchrun --numa-binding=node --nproc-per-node 8 train.py

    ## Source
    sched_getaffinity compared with nvmlDeviceGetCpuAffinity. A process without a local rank counts for all visible GPUs.
    """
    allowed = cpus_in(host.need(host.cpus_allowed_list, "cpus_allowed_list"))
    indices = visible(environ.variables, gpu).devices
    rank = environ.local_rank
    if rank is not None and len(indices) > 1:
        indices = indices[rank : rank + 1]
    here = frozenset().union(*(cpus_in(node.cpus) for node in host.numa_nodes)) or allowed
    known = [g for g in topo.all_gpus() if g.index in indices and cpus_in(g.cpu_affinity or "") & here]
    if not known:
        not_here("NVML reports no CPUs of this machine as near the GPUs")
    remote = [g for g in known if not cpus_in(g.cpu_affinity or "") & allowed]
    if remote:
        names = ", ".join(str(g.index) for g in remote)
        yield Finding(
            f"CPUs {host.cpus_allowed_list} of this process are far from GPU {names} (near CPUs {remote[0].cpu_affinity})",
            (Evidence("host.cpus_allowed_list", host.cpus_allowed_list or "", remote[0].cpu_affinity or ""),),
            fix_command="torchrun --numa-binding=node …",
            where=Where(gpu=remote[0].index if len(remote) == 1 else None),
        )
