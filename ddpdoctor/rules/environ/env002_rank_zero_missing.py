"""ENV002: no process has rank 0."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Form, Nodes, ranges
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause


@cause("ENV002", "rank-zero-missing", Severity.ERROR, scope=CauseScope.PROCESS, explains=("ENV001",))
def rank_zero_missing(nodes: Nodes) -> Iterator[Finding]:
    """No process of the job has RANK 0.

    ## Why it matters
    Rank 0 hosts the store. Without it every process tries to connect to MASTER_ADDR and prints nothing until `The
    client socket has timed out`, which looks like a network problem.

    ## Fix
    Count ranks from 0: set RANK=0 on exactly one process, on the node that MASTER_ADDR names.

    ## Example

        DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node0, 29500).

        # before
        RANK=1 WORLD_SIZE=2 python train.py    # node0
        RANK=2 WORLD_SIZE=2 python train.py    # node1

        # after
        RANK=0 WORLD_SIZE=2 python train.py    # node0
        RANK=1 WORLD_SIZE=2 python train.py    # node1
    """
    ranks = [node.rank for node in nodes.nodes if node.form == Form.ENV and node.rank is not None]
    if not ranks or 0 in ranks or len(ranks) < (nodes.expected or 0):
        return
    yield Finding(
        f"all {len(ranks)} ranks joined, but none of them is rank 0 (ranks: {ranges(ranks)})",
        (Evidence("nodes.rank", ranges(ranks), f"0-{len(ranks) - 1}"),),
    )
