"""HOST003: locked memory for RDMA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import UNLIMITED, Host, readable, visible_gpus
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.preconditions import need_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

CONTAINER_BYTES = 64 << 20
"""Below this a container has what its daemon was started with, not what anybody chose."""


@rule(
    "HOST003",
    "memlock-limit-low",
    Severity.ERROR,
    signatures=(
        r"ibv_reg_mr\w* failed[^\n]*Cannot allocate memory",
        r"NET/OFI Unable to register memory[^\n]*Cannot allocate memory",
        r"ibv_create_(qp|cq) failed[^\n]*Cannot allocate memory",
        r"NCCL WARN Call to ibv_create_(qp|cq) failed$",
    ),
)
def check(host: Host, environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """The limit of locked memory is too low for RDMA.

    ## Why it matters
    An RDMA adapter may only touch memory that is locked. With a limit NCCL fails with `Call to ibv_reg_mr failed with
    error Cannot allocate memory` although hundreds of gigabytes are free. Daemons (sshd, slurmd, dockerd) and what they
    start do not have the limit that a login shell shows.

    ## Fix
    Set the limit to unlimited where the job is started: LimitMEMLOCK=infinity for the daemon, docker run
    --ulimit memlock=-1, or memlock in /etc/security/limits.conf.
    """
    gpus = visible_gpus(environ, gpu)
    if gpu is not None:
        need_gpus(gpu)
    if not gpus:
        not_here("no GPU is visible to the ranks")
    limit = host.need(host.limits.locked_memory, "limits")
    if limit.soft == UNLIMITED:
        return
    if host.rdma_devices and environ.settings.get("NCCL_IB_DISABLE") != "1":
        severity = None
        why = f"{len(host.rdma_devices)} RDMA devices need it unlimited"
    elif host.is_container and gpus > 1 and limit.soft < CONTAINER_BYTES:
        severity = Severity.WARNING
        why = "a container for GPUs is expected to have it unlimited, or RDMA fails as soon as it is used"
    else:
        return
    yield Finding(
        f"the limit of locked memory is {readable(limit.soft)}: {why}",
        (Evidence("host.limits.locked_memory.soft", readable(limit.soft), "unlimited"),),
        fix_command="docker run --ulimit memlock=-1 …"
        if host.container in ("docker", "podman")
        else "ulimit -l unlimited",
        severity=severity,
    )
