"""HOST003: the limit of locked memory, for RDMA."""

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
"""Below this a container has the default of its daemon, not a limit that a user chose."""


@cause(
    "HOST003",
    "memlock-limit-low",
    Severity.ERROR,
    signatures=(
        r"ibv_reg_mr\w{0,40} failed[^\n]{0,300}Cannot allocate memory",
        r"NET/OFI Unable to register memory[^\n]{0,300}Cannot allocate memory",
        r"ibv_create_(qp|cq) failed[^\n]{0,300}Cannot allocate memory",
        r"NCCL WARN Call to ibv_create_(qp|cq) failed$",
    ),
)
def memlock_limit_low(host: Host, environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """The limit of locked memory is too low for RDMA.

    ## Why it matters
    An RDMA adapter can use only locked memory; with a low limit NCCL fails with `Call to ibv_reg_mr failed with
    error Cannot allocate memory` although hundreds of gigabytes are free. Processes that sshd, slurmd, or dockerd
    start do not have the limit that a login shell shows.

    ## Fix
    Set the limit to unlimited where the job is started: LimitMEMLOCK=infinity for the daemon, `docker run --ulimit
    memlock=-1`, or memlock in /etc/security/limits.conf.

    ## Example

        NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory

        # before
        docker run --gpus all --device=/dev/infiniband IMAGE torchrun …
        # after
        docker run --gpus all --device=/dev/infiniband --ulimit memlock=-1 IMAGE torchrun …
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
        count = len(host.rdma_devices)
        why = f"{count} RDMA device{'s need' if count > 1 else ' needs'} it unlimited"
    elif host.is_container and gpus > 1 and limit.soft < CONTAINER_BYTES:
        severity = Severity.WARNING
        why = "RDMA in this container needs it unlimited"
    else:
        return
    yield Finding(
        f"the locked memory limit is {readable(limit.soft)}; {why}",
        (Evidence("host.limits.locked_memory.soft", readable(limit.soft), "unlimited"),),
        fix_command="docker run --ulimit memlock=-1 …"
        if host.container in ("docker", "podman")
        else "ulimit -l unlimited",
        severity=severity,
    )


@memlock_limit_low.look
def locked(launch: Launch) -> Iterator[Finding]:
    """RDMA in a container or a shell that must not lock memory."""
    for line in launch.lines:
        container = container_of(line)
        if (
            container is not None
            and container.has_infiniband
            and not container.may_lock_memory
            and _asks_for_rdma(line, container)
        ):
            edits = [after(container.run, "--ulimit memlock=-1")]
            text = "the container has RDMA devices, but no --ulimit memlock=-1"
            expected = "--ulimit memlock=-1"
            label, severity = f"add {expected}", Severity.WARNING
            yield point(launch, line, container.run, text, expected, edits, label=label, severity=severity)
        limit = line.before.get("memlock", "unlimited")
        several = line.plan is not None and line.plan.is_multinode
        low = limit.isdigit() and int(limit) << 10 < CONTAINER_BYTES
        if low and (several or wants_rdma(line.environ.variables)) and line.layer(LauncherKind.CONTAINER) is None:
            yield Finding(
                f"ulimit -l {limit} allows {readable(int(limit) << 10)} of locked memory; RDMA needs it unlimited",
                (Evidence("launch.before.memlock", limit, "unlimited"),),
                fix_command="ulimit -l unlimited",
                where=Where(file=line.file, line=line.place(0)[0], column=line.place(0)[1], node=line.node),
                severity=Severity.WARNING,
            )


def _asks_for_rdma(line: LaunchLine, container: Container) -> bool:
    named = any(
        (g.value or "").startswith("/dev/infiniband") for g in container.layer.reading.given if g.flag == "--device"
    )
    return named or wants_rdma(line.environ.variables) is not None


UNLOCKED = (
    r"ibv_reg_mr\w{0,40} failed[^\n]{0,300}Cannot allocate memory",
    r"NET/OFI Unable to register memory[^\n]{0,300}Cannot allocate memory",
    r"ibv_create_(qp|cq) failed[^\n]{0,300}Cannot allocate memory",
)


WITHOUT_ERROR = (r"NCCL WARN Call to ibv_create_(qp|cq) failed$",)


@memlock_limit_low.look
def locked_memory(log: Log) -> Iterator[Finding]:
    """Memory that could not be locked, or, if NCCL leaves out the error, one of several reasons."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, UNLOCKED)
    if lines:
        yield finding_of(log, lines, "the limit of locked memory is too low for RDMA", blames_speaker=True)
        return
    without_error = matching_lines(log, WITHOUT_ERROR)
    if without_error:
        title = "NCCL could not create an RDMA queue: `ulimit -l` is too low, or no queue is left"
        yield finding_of(log, without_error, title, blames_speaker=True)
