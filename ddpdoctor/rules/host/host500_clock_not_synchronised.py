"""HOST500: a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("HOST500", "clock-not-synchronised", Severity.NOTE)
def clock_not_synchronised(host: Host, environ: Environ) -> Iterator[Finding]:
    """The kernel does not count its clock as synchronised, on a node of a job with several nodes.

    ## Why it matters
    torchrun's c10d rendezvous compares heartbeats by wall clock: a node whose clock lags by more than 15 s is dropped
    with `since they had no heartbeat`, and no message names the time. Log lines of several nodes cannot be put in order.

    ## Fix
    Run chrony or systemd-timesyncd on every node. A virtual machine whose hypervisor sets the clock needs neither.
    """
    if not environ.is_multi_node:
        not_here("the job has one node, as far as the environment says")
    if not host.need(host.clock_is_synchronised, "clock_is_synchronised"):
        yield Finding(
            "the kernel's clock is not synchronised: expected NTP or chrony on every node of the job",
            (Evidence("host.clock_is_synchronised", "false", "true"),),
            fix_command="timedatectl set-ntp true",
        )
