"""ENV005: the ranks have different values of WORLD_SIZE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Form, Nodes, ranges, split
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.hand_started_ranks import differing_variable
from ddpdoctor.rules.node_findings import differs, only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "ENV005",
    "world-size-mismatch",
    Severity.ERROR,
    scope=CauseScope.PROCESS,
    explains=("ENV001",),
    repairs=("rank-variable",),
)
def world_size_mismatch(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The ranks were given different values of WORLD_SIZE.

    ## Why it matters
    The process group may still form, and then the first collective hangs. `3/4 clients joined` may count a rank that
    does not exist.

    ## Fix
    Give every process the same WORLD_SIZE: the number of processes on all nodes together.

    ## Example

        Timed out after 601 seconds waiting for clients. 3/4 clients joined.

        # before
        RANK=0 WORLD_SIZE=4 python train.py    # node0
        RANK=1 WORLD_SIZE=3 python train.py    # node1
        RANK=2 WORLD_SIZE=3 python train.py    # node2

        # after: WORLD_SIZE=3 on every node
        RANK=0 WORLD_SIZE=3 python train.py    # node0
    """
    if nodes is not None:
        ranks = [node for node in nodes.nodes if node.form == Form.ENV and node.world_size is not None]
        values_of_ranks = split(ranks, lambda node: str(node.world_size))
        if values_of_ranks is not None:
            yield differs(values_of_ranks, "WORLD_SIZE", "world_size")
    if only_met(nodes, probe):
        return
    assert probe is not None
    observations = probe.seen(Kind.WORLD_SIZE_DIFFERS)
    if not observations:
        return
    sizes = {r.rank: r.world_size for r in probe.ranks if r.world_size is not None}
    count = Counter(sizes.values())
    ordered = count.most_common(2)
    tie = len(ordered) == 2 and ordered[0][1] == ordered[1][1]
    common = ordered[0][0] if ordered else None
    blamed = tuple(sorted(rank for rank, size in sizes.items() if tie or size != common)) or observations[0].ranks
    hosts = {r.host for r in probe.ranks if r.rank in blamed}
    values = "; ".join(f"{ranges(r for r in sizes if sizes[r] == size)}: {size}" for size in sorted(count)[:8])
    report = probe.report_of(blamed[0])
    yield Finding(
        f"WORLD_SIZE differs between ranks ({values})" if values else observations[0].message,
        (Evidence("probe.ranks.world_size", values, "one value" if tie else str(common)),),
        where=Where(
            host=hosts.pop() if len(hosts) == 1 else None,
            node_rank=report.node_rank if report and len(blamed) == 1 else None,
            rank=blamed[0] if len(blamed) == 1 else None,
            local_rank=report.local_rank if report and len(blamed) == 1 else None,
        ),
        ranks=blamed,
    )


@world_size_mismatch.look
def sizes(launch: Launch) -> Iterator[Finding]:
    """Launch lines of one job with different numbers of ranks."""
    yield from differing_variable(launch, "WORLD_SIZE")


@world_size_mismatch.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.WORLD_SIZE_MISMATCH)
