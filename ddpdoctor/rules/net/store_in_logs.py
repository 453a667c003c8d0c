"""NET015: a name that was not there yet, as logs show it."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule("NET015", "dns-not-ready", Severity.WARNING)
def dns_not_ready() -> None:
    """The master's name was not in DNS yet when the pods started.

    ## Why it matters
    "host not found: Name or service not known" in the first seconds after the pods of a job start, gone after the restart:
    the headless service publishes a pod's name only once the pod is ready.

    ## Fix
    Set publishNotReadyAddresses: true on the headless service, or let an init container wait for the name
    (until getent hosts "$MASTER_ADDR"; do sleep 1; done). torch 1.12 and newer try again by themselves.
    """
