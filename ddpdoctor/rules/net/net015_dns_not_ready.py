"""NET015: a name that was not there yet, as logs show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause("NET015", "dns-not-ready", Severity.WARNING)
def dns_not_ready() -> None:
    """The master's name was not in DNS yet when the pods started.

    ## Why it matters
    "host not found: Name or service not known" in the first seconds after the pods of a job start, gone after the restart:
    the headless service publishes a pod's name only once the pod is ready.

    ## Fix
    Set publishNotReadyAddresses: true on the headless service, or let an init container wait for the name
    (until getent hosts "$MASTER_ADDR"; do sleep 1; done). torch 1.12 and newer try again by themselves.
    """


UNKNOWN_NAME = (
    r"gai error: -\d+",
    r"host not found: Name or service not known",
    r"Temporary failure in name resolution",
)


@dns_not_ready.look
def name_came_late(log: Log) -> Iterator[Finding]:
    """A name did not resolve at first, and then the job ran."""
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.world_sizes import worlds_finding

    lines = matching_lines(log, UNKNOWN_NAME)
    if lines and all(history_of(log).survived(line) for line in lines):
        found = worlds_finding(
            log, "the master's name did not resolve at first; later the job ran", lines[:2], lines[0]
        )
        yield replace(found, severity=Severity.NOTE)
