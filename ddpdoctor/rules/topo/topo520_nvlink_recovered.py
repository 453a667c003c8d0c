"""TOPO520: NVLinks that had to recover, as nvidia-smi counts it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

__all__: list[str] = []

MOST_SHARE = 0.5
"""If more of the links have recovered, the fabric was restarted since the counters began: no fault of a link."""


@cause("TOPO520", "nvlink-recovered", Severity.WARNING)
def nvlink_recovered(topo: Topo) -> Iterator[Finding]:
    """An NVLink recovered from errors since its counters began, and most other links did not.

    ## Why it matters
    A recovery stops all traffic of the link. A link that recovers again and again slows every collective, and often fails with
    Xid 74 or 149 later.

    ## Fix
    Run the command twice, a minute apart. If the count grows, drain the node and reset its GPUs; if it still grows, have the
    board or bridge inspected.

    ## Example
    ddpdoctor's message:

        GPU 3: NVLink 5 recovered 12 times since its counters began

    On that node, twice, a minute apart:

        nvidia-smi nvlink -e -i 3

    ## Source
    `nvidia-smi nvlink -e`. DCGM fails a link at one recovery within its window (dcgmi health, NVLink). Replays and CRC errors are
    not judged from their totals: healthy links have some (TOPO013 compares two samples).
    """
    links = [(gpu, errors) for gpu in topo.all_gpus() for errors in gpu.link_errors if errors.recovery is not None]
    if not links:
        not_here("no file shows error counters of NVLinks (`nvidia-smi nvlink -e`)")
    sick = [(gpu, errors) for gpu, errors in links if errors.recovery]
    if len(sick) > max(1, MOST_SHARE * len(links)):
        return
    by_gpu: dict[int, dict[int, int]] = {}
    for gpu, errors in sick:
        by_gpu.setdefault(gpu.index, {})[errors.index] = errors.recovery or 0
    for index, counts in by_gpu.items():
        link, count = max(counts.items(), key=lambda each: each[1])
        others = f", {len(counts) - 1} more links too" if len(counts) > 1 else ""
        times = "once" if count == 1 else f"{count} times"
        yield Finding(
            f"GPU {index}: NVLink {link} recovered {times} since its counters began{others}",
            (Evidence(f"topo.gpus[{index}].link_errors[{link}].recovery", str(count), "0"),),
            fix_command=f"nvidia-smi nvlink -e -i {index}",
            where=Where(gpu=index),
            certainty=Certainty.LIKELY,
        )
