"""NET511: ibdiagnet found errors in the InfiniBand fabric."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.net import Net
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("NET511", "fabric-diagnostic-errors", Severity.WARNING)
def fabric_diagnostic_errors(net: Net) -> Iterator[Finding]:
    """The summary of ibdiagnet lists errors.

    ## Why it matters
    A link with errors in the fabric slows down or ends every job whose traffic crosses it: NCCL prints `Got completion from
    peer … with error 12`.

    ## Fix
    Open ibdiagnet2.log at the stage that has errors, and replace the cable or transceiver of the port that it names.

    ## Example

        -I- Links Check                  0          3

        grep -- '-E-' /var/tmp/ibdiagnet2/ibdiagnet2.log
    """
    if net.fabric_errors is None and net.gap("fabric_errors") is None:
        not_here("no summary of ibdiagnet was given")
    errors = net.need(net.fabric_errors, "fabric_errors")
    if errors:
        yield Finding(
            f"ibdiagnet found errors in the fabric: {errors[0]}",
            (Evidence("net.fabric_errors", errors[0], "no error"),),
            fix_command="grep -- '-E-' /var/tmp/ibdiagnet2/ibdiagnet2.log",
        )
