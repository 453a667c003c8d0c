"""HOST015 to HOST017: kernel settings that cost some speed on a node with GPUs."""

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
    """The kernel moves memory between NUMA nodes automatically.

    ## Why it matters
    Automatic NUMA balancing unmaps pages to find out which CPU uses them, and moves them. Host buffers near a GPU
    move away, and every step pays for the page faults.

    ## Fix
    Run `sysctl kernel.numa_balancing=0` on each node.

    ## Example

        kernel.numa_balancing is on with 2 NUMA nodes; it slows GPU nodes down

        # before
        kernel.numa_balancing = 1
        # after, in /etc/sysctl.d/90-gpu.conf
        kernel.numa_balancing = 0
    """
    need_gpus(gpu)
    host.need(host.numa_nodes or None, "numa_nodes")
    if len(host.numa_nodes) > 1 and host.numa_balancing:
        yield Finding(
            f"kernel.numa_balancing is on with {len(host.numa_nodes)} NUMA nodes; it slows GPU nodes down",
            (Evidence("host.numa_balancing", "true", "false"),),
            fix_command="sysctl kernel.numa_balancing=0",
        )


@cause("HOST016", "cpu-governor-not-performance", Severity.NOTE)
def cpu_governor_not_performance(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """The CPU frequency governor is not `performance`.

    ## Why it matters
    Cores that must first increase their clock delay kernel launches and NCCL's proxy threads. Latency rises, mostly
    for small messages.

    ## Fix
    Run `cpupower frequency-set -g performance` on each node.

    ## Example

        the CPU governor is schedutil; GPU nodes need performance

        # before
        cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor    # schedutil
        # after
        cpupower frequency-set -g performance
    """
    need_gpus(gpu)
    if host.governor is None:
        not_here("this machine does not show a CPU frequency governor")
    if host.governor != "performance":
        yield Finding(
            f"the CPU governor is {host.governor}; GPU nodes need performance",
            (Evidence("host.governor", host.governor, "performance"),),
            fix_command="cpupower frequency-set -g performance",
        )


@cause("HOST017", "transparent-huge-pages-always", Severity.NOTE)
def transparent_huge_pages_always(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """Transparent huge pages are given to every program, whether it requests them or not.

    ## Why it matters
    To make a huge page the kernel may have to compact memory while a thread waits: some steps are slow, and no log
    shows the reason.

    ## Fix
    Run `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root on each node.

    ## Example

        transparent huge pages are set to always; GPU nodes need madvise

        # before
        cat /sys/kernel/mm/transparent_hugepage/enabled    # [always] madvise never
        # after
        echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
    """
    need_gpus(gpu)
    if host.huge_pages is None:
        not_here("this kernel has no transparent huge pages")
    if host.huge_pages == "always":
        yield Finding(
            "transparent huge pages are set to always; GPU nodes need madvise",
            (Evidence("host.huge_pages", "always", "madvise"),),
            fix_command="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
