"""HOST003: locked memory for RDMA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import UNLIMITED, Host, readable, visible_gpus
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import Container, container_of, wants_rdma
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, point
from ddpdoctor.rules.preconditions import need_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log

CONTAINER_BYTES = 64 << 20
"""Below this a container has what its daemon was started with, not what anybody chose."""


@cause(
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
def memlock_limit_low(host: Host, environ: Environ, gpu: Gpu) -> Iterator[Finding]:
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


@memlock_limit_low.look
def locked(launch: Launch) -> Iterator[Finding]:
    """RDMA in a container or a shell that may not lock memory."""
    for line in launch.lines:
        box = container_of(line)
        if box is not None and box.has_infiniband and not box.may_lock_memory and _asks_for_rdma(line, box):
            edits = [after(box.run, "--ulimit memlock=-1")]
            text = "the container has RDMA devices and no --ulimit memlock=-1: expected locked memory without limit"
            yield point(launch, line, box.run, text, "--ulimit memlock=-1", edits, severity=Severity.WARNING)
        limit = line.before.get("memlock", "unlimited")
        several = line.plan is not None and line.plan.is_multinode
        low = limit.isdigit() and int(limit) << 10 < CONTAINER_BYTES
        if low and (several or wants_rdma(line.environ.variables)) and line.layer(LauncherKind.CONTAINER) is None:
            yield Finding(
                f"ulimit -l {limit} allows {readable(int(limit) << 10)} of locked memory: expected unlimited, for RDMA",
                (Evidence("launch.before.memlock", limit, "unlimited"),),
                fix_command="ulimit -l unlimited",
                where=Where(file=line.file, line=line.place(0)[0], column=line.place(0)[1], node=line.node),
                severity=Severity.WARNING,
            )


def _asks_for_rdma(line: LaunchLine, box: Container) -> bool:
    named = any((g.value or "").startswith("/dev/infiniband") for g in box.layer.reading.given if g.flag == "--device")
    return named or wants_rdma(line.environ.variables) is not None


UNLOCKED = (
    r"ibv_reg_mr\w* failed[^\n]*Cannot allocate memory",
    r"NET/OFI Unable to register memory[^\n]*Cannot allocate memory",
    r"ibv_create_(qp|cq) failed[^\n]*Cannot allocate memory",
)


UNSAID = (r"NCCL WARN Call to ibv_create_(qp|cq) failed$",)


@memlock_limit_low.look
def locked_memory(log: Log) -> Iterator[Finding]:
    """Memory that could not be locked, or, where NCCL leaves out the error, one of several reasons."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, UNLOCKED)
    if lines:
        yield finding_of(log, lines, "The limit of locked memory is too low for RDMA", blames_speaker=True)
        return
    unsaid = matching_lines(log, UNSAID)
    if unsaid:
        title = (
            "NCCL could not make a queue of an RDMA adapter, and does not say why. Candidates: the limit of locked memory "
            "(ulimit -l, HOST003), an adapter that has no queues left or refuses them (NET032, NET035)"
        )
        yield finding_of(log, unsaid, title, blames_speaker=True)
