"""ENV002: nobody is rank 0."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Form, Nodes, ranges
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause


@cause("ENV002", "rank-zero-missing", Severity.ERROR, scope=CauseScope.PROCESS, explains=("ENV001",))
def rank_zero_missing(nodes: Nodes) -> Iterator[Finding]:
    """No process of the job has RANK 0.

    ## Why it matters
    Rank 0 hosts the store. Without it every process is a client that knocks at MASTER_ADDR and prints nothing until "The
    client socket has timed out": it reads like a network problem.

    ## Fix
    Count ranks from 0: RANK=0 on exactly one process, on the node whose address MASTER_ADDR is.
    """
    found = [node.rank for node in nodes.nodes if node.form == Form.ENV and node.rank is not None]
    if not found or 0 in found or len(found) < (nodes.expected or 0):
        return
    yield Finding(
        f"all {len(found)} ranks are here and none is rank 0: they are {ranges(found)}, expected 0 to {len(found) - 1}",
        (Evidence("nodes.rank", ranges(found), f"0-{len(found) - 1}"),),
    )
