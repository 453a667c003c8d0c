"""NET015: a name that was not in DNS yet, as logs show it."""

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
    In the first seconds after the pods start, the ranks print `host not found: Name or service not known`; it is gone after the
    restart. The headless service publishes a pod's name only once the pod is ready.

    ## Fix
    Set `publishNotReadyAddresses: true` on the headless service, or make an init container wait for the name
    (`until getent hosts "$MASTER_ADDR"; do sleep 1; done`). torch 1.12 and newer retry by themselves.

    ## Example
    In the log of a worker pod:

        host not found: Name or service not known

    In the manifest of the headless service:

        # before
        spec:
          clusterIP: None
        # after
        spec:
          clusterIP: None
          publishNotReadyAddresses: true
    """


UNKNOWN_NAME = (
    r"gai error: -\d+",
    r"host not found: Name or service not known",
    r"Temporary failure in name resolution",
)


@dns_not_ready.look
def name_resolved_later(log: Log) -> Iterator[Finding]:
    """A name did not resolve at first, but the job ran later."""
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.world_sizes import worlds_finding

    lines = matching_lines(log, UNKNOWN_NAME)
    if lines and all(history_of(log).survived(line) for line in lines):
        finding = worlds_finding(
            log, "the master's name did not resolve at first; the job ran later", lines[:2], lines[0]
        )
        yield replace(finding, severity=Severity.NOTE)
