"""HOST008: the CPU quota of the control group."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import UNLIMITED, Host, local_ranks
from ddpdoctor.facts.job import Job
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("HOST008", "cpu-quota-low", Severity.WARNING)
def cpu_quota_low(host: Host, environ: Environ, gpu: Gpu | None = None, job: Job | None = None) -> Iterator[Finding]:
    """The control group gives a rank fewer than two CPUs.

    ## Why it matters
    Once a CPU limit is used up, all threads of the container stop for the rest of each period, although every core
    is visible. Data loading and NCCL's proxy threads stop as well, and all ranks wait for the slowest.

    ## Fix
    Raise the CPU limit (`docker run --cpus`, resources.limits.cpu in Kubernetes, --cpus-per-task in Slurm) to two or
    more per rank.

    ## Example

        the cgroup's quota is 4 CPUs for 8 ranks; 16 or more are needed

        # before
        docker run --gpus all --cpus=4 IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all --cpus=16 IMAGE torchrun --nproc-per-node 8 train.py
    """
    if host.cgroup is None or host.cgroup.cpu_quota is None:
        host.need(host.cgroup, "cgroup")
        return
    quota, ranks = host.cgroup.cpu_quota, local_ranks(environ, gpu, job)
    if quota == UNLIMITED or quota >= 2 * (ranks or 1):
        return
    count = f"{ranks} rank{'s' * (ranks > 1)}" if ranks else "1 rank"
    yield Finding(
        f"the cgroup's quota is {quota:g} CPU{'s' * (quota != 1)} for {count}; {2 * (ranks or 1)} or more are needed",
        (Evidence("host.cgroup.cpu_quota", f"{quota:g}", f"at least {2 * (ranks or 1)}"),),
        severity=None if ranks else Severity.NOTE,
    )
