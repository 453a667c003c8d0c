"""HOST500: a clock that is not synchronized."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("HOST500", "clock-not-synchronised", Severity.NOTE)
def clock_not_synchronised(host: Host, environ: Environ) -> Iterator[Finding]:
    """The clock of a node is not synchronized, in a job with several nodes.

    ## Why it matters
    torchrun's c10d rendezvous compares heartbeats by wall clock: it drops a node whose clock is more than 15 s
    behind, with `since they had no heartbeat` and without a message about the time. Log lines of several nodes
    cannot be put in order.

    ## Fix
    Run chrony or systemd-timesyncd on every node; a virtual machine whose hypervisor sets the clock needs neither.

    ## Example

        the kernel's clock is not synchronized (no NTP or chrony)

        # before
        timedatectl        # System clock synchronized: no
        # after, on every node
        timedatectl set-ntp true
    """
    if not environ.is_multi_node:
        not_here("the job has one node according to the environment")
    if not host.need(host.clock_is_synchronised, "clock_is_synchronised"):
        yield Finding(
            "the kernel's clock is not synchronized (no NTP or chrony)",
            (Evidence("host.clock_is_synchronised", "false", "true"),),
            fix_command="timedatectl set-ntp true",
        )
