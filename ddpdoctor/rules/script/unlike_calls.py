"""SCRIPT028 and SCRIPT029: one collective, called with other sizes or types on other ranks. Only dumps and logs show it."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule("SCRIPT028", "collective-shape-mismatch", Severity.ERROR)
def shape() -> None:
    """The ranks call one collective with different sizes.

    ## Why it matters
    Nobody compares the sizes before the data is sent. Gloo returns a plausible result on one rank and ends or hangs the
    others ("op.preamble.length <= op.nbytes. 20 vs 16"), often in a later call; NCCL hangs or writes over memory. Only
    TORCH_DISTRIBUTED_DEBUG=DETAIL says "Detected mismatch between collectives on ranks".

    ## Fix
    Make the sizes equal on all ranks: pad to the longest, or all_gather the sizes first. A last batch that is smaller, and
    a metric over a list whose length depends on the data, are the usual sources.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp (CollectiveFingerPrint), gloo/transport/tcp/pair.cc.
    """


@rule("SCRIPT029", "collective-dtype-mismatch", Severity.ERROR)
def dtype() -> None:
    """The ranks call one collective with different dtypes.

    ## Why it matters
    One side returns values that were never reduced, the other one ends with SIGABRT ("op.preamble.length <= op.nbytes"),
    hangs, or reads the bytes of one type as another: a loss of 1e-38 or NaN without any error.

    ## Fix
    Cast the tensor to one dtype on all ranks before the collective; a metric that is an int on ranks with data and a
    float zero on the others is the usual source.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp (CollectiveFingerPrint).
    """
