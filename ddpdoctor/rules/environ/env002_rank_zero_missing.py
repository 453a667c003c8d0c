"""ENV002: nobody is rank 0."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule("ENV002", "rank-zero-missing", Severity.ERROR)
def rank_zero_missing() -> None:
    """No process of the job has RANK 0.

    ## Why it matters
    Rank 0 hosts the store. Without it every process is a client that knocks at MASTER_ADDR and prints nothing until "The
    client socket has timed out": it reads like a network problem.

    ## Fix
    Count ranks from 0: RANK=0 on exactly one process, on the node whose address MASTER_ADDR is.
    """
