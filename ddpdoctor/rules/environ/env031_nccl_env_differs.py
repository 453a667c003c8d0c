"""ENV031: settings of NCCL that every rank must share."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule(
    "ENV031",
    "nccl-env-differs",
    Severity.ERROR,
    signatures=(r"[Mm]essage truncated : receiv(ing|ed) \d+ bytes instead of \d+",),
)
def nccl_env_differs() -> None:
    """NCCL settings that must agree differ between ranks.

    ## Why it matters
    "Message truncated : received 1024 bytes instead of 256", or a hang: the ranks chose different algorithms, protocols or
    buffer sizes. It reads like a fault of the network. Collectives of different sizes, and NCCL 2.19.3 to 2.20.5 by a fault of
    their own, print the same line.

    ## Fix
    Compare env | grep NCCL_ and the NCCL version on all nodes, and give every rank the same NCCL_ALGO, NCCL_PROTO,
    NCCL_BUFFSIZE and NCCL_NTHREADS, best none of them.
    """
