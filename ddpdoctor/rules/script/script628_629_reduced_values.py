"""SCRIPT628 and SCRIPT629: reduced values that are scaled or added up in a wrong way."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT628", "running-total-reduced-in-place", Severity.WARNING)
def running_total_reduced_in_place(script: Script) -> Iterator[Finding]:
    """A running total is reduced in place, then added to, and reduced again.

    ## Why it matters
    The first result already contains the contributions of all ranks. Each further all_reduce multiplies it by the number of
    ranks: the shown loss or accuracy grows or drifts.

    ## Fix
    Reduce a copy: `summed = total.clone(); dist.all_reduce(summed)`.

    ## Example
        # before
        for x, y in loader:
            total += loss.detach()
            dist.all_reduce(total)

        # after
        for x, y in loader:
            total += loss.detach()
            summed = total.clone()
            dist.all_reduce(summed)
    """
    yield from history_findings(script, MistakeKind.TOTAL_REDUCED_AGAIN)


@cause("SCRIPT629", "device-count-used-as-world-size", Severity.WARNING)
def device_count_used_as_world_size(script: Script) -> Iterator[Finding]:
    """The number of GPUs of one node is used as the number of ranks.

    ## Why it matters
    On several nodes a sum over all ranks is divided by too small a number, and an output list of all_gather is too short:
    `ValueError: Tensor list should have the same length as the world size`.

    ## Fix
    Use `dist.get_world_size()`.

    ## Example
        # before
        dist.all_reduce(p.grad)
        p.grad /= torch.cuda.device_count()

        # after
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    """
    yield from history_findings(script, MistakeKind.DIVIDED_BY_NODE, MistakeKind.LIST_OF_NODE)
