"""HOST015 to HOST017: settings of the kernel that cost some speed on a node with GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus


@cause("HOST015", "numa-balancing-on", Severity.NOTE)
def numa_balancing_on(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """The kernel moves memory between NUMA nodes by itself.

    ## Why it matters
    Automatic NUMA balancing unmaps pages to see who touches them, and moves them: host buffers near a GPU wander off,
    and every step pays for the faults.

    ## Fix
    Turn it off: sysctl kernel.numa_balancing=0.
    """
    need_gpus(gpu)
    host.need(host.numa_nodes or None, "numa_nodes")
    if len(host.numa_nodes) > 1 and host.numa_balancing:
        yield Finding(
            f"kernel.numa_balancing is on with {len(host.numa_nodes)} NUMA nodes: expected off on a node with GPUs",
            (Evidence("host.numa_balancing", "true", "false"),),
            fix_command="sysctl kernel.numa_balancing=0",
        )


@cause("HOST016", "cpu-governor-not-performance", Severity.NOTE)
def cpu_governor_not_performance(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """The CPU frequency governor is not `performance`.

    ## Why it matters
    Cores that first must speed up delay kernel launches and NCCL's proxy threads: latency rises, mostly for small
    messages.

    ## Fix
    cpupower frequency-set -g performance
    """
    need_gpus(gpu)
    if host.governor is None:
        not_here("this machine does not show a CPU frequency governor")
    if host.governor != "performance":
        yield Finding(
            f"the CPU governor is {host.governor}: expected performance on a node with GPUs",
            (Evidence("host.governor", host.governor, "performance"),),
            fix_command="cpupower frequency-set -g performance",
        )


@cause("HOST017", "transparent-huge-pages-always", Severity.NOTE)
def transparent_huge_pages_always(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """Transparent huge pages are given to every program, asked for or not.

    ## Why it matters
    To make a huge page the kernel may have to compact memory while a thread waits: rare slow steps without a cause in
    any log.

    ## Fix
    echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
    """
    need_gpus(gpu)
    if host.huge_pages is None:
        not_here("this kernel has no transparent huge pages")
    if host.huge_pages == "always":
        yield Finding(
            "transparent huge pages are always: expected madvise on a node with GPUs",
            (Evidence("host.huge_pages", "always", "madvise"),),
            fix_command="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
