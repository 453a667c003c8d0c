"""HOST018: systemd's RemoveIPC."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus


@cause(
    "HOST018",
    "shared-memory-removed-at-logout",
    Severity.WARNING,
    signatures=(r"unlink shared memory /dev/shm/nccl-\S* failed",),
)
def shared_memory_removed_at_logout(host: Host, gpu: Gpu) -> Iterator[Finding]:
    """systemd removes the user's files in /dev/shm at the last logout, while the job runs.

    ## Why it matters
    A job outside a login session (a batch job, a service) loses its shared memory when its user logs out anywhere
    on the node. NCCL then prints `unlink shared memory /dev/shm/nccl-… failed`, or a DataLoader worker dies.

    ## Fix
    Set RemoveIPC=no in /etc/systemd/logind.conf, or run `loginctl enable-linger USER` on the node.

    ## Example

        NCCL WARN unlink shared memory /dev/shm/nccl-QoJ3wE failed, error: No such file or directory

        # before, in /etc/systemd/logind.conf
        RemoveIPC=yes
        # after
        RemoveIPC=no
    """
    need_gpus(gpu, 2)
    logind = host.need(host.logind, "logind")
    if logind.removes_ipc and not logind.user_lingers and not logind.is_in_session:
        yield Finding(
            "RemoveIPC=yes, but this process is outside any login session",
            (Evidence("host.logind.removes_ipc", "true", "false"),),
            fix_command="loginctl enable-linger",
            severity=Severity.NOTE,
        )
