"""SCRIPT028 and SCRIPT029: one collective, called with other sizes or types on other ranks. Only dumps and logs show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.log import Log


@cause("SCRIPT028", "collective-shape-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_shape_mismatch() -> None:
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


@cause("SCRIPT029", "collective-dtype-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_dtype_mismatch() -> None:
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


@collective_shape_mismatch.look
def shape(hang: Hang) -> Iterator[Finding]:
    """One collective, different sizes."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.SHAPE):
        yield conflict_finding(hang, each)


@collective_dtype_mismatch.look
def dtype(hang: Hang) -> Iterator[Finding]:
    """One collective, different types."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.DTYPE):
        yield conflict_finding(hang, each)


SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Collectives in which all ranks pass as many elements."""


@collective_shape_mismatch.look
def shape_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different sizes."""
    from ddpdoctor.logs.collective_waits import collective_waits
    from ddpdoctor.rules.log.differing_calls import differing_calls
    from ddpdoctor.rules.log.fingerprints import fingerprints

    named = fingerprints(log, "Tensor shapes")
    if named is not None:
        yield named
        return
    waited = [
        wait
        for wait in collective_waits(log)
        if wait.seq is not None and wait.op in SAME_SIZE and wait.size is not None
    ]
    for seq in sorted({wait.seq for wait in waited if wait.seq is not None}):
        same = [wait for wait in waited if wait.seq == seq]
        if (
            len({wait.op for wait in same}) == len({wait.group for wait in same}) == 1
            and len({w.size for w in same}) > 1
        ):
            yield differing_calls(log, same, f"tensors of different sizes in collective number {seq}")
            return


@collective_dtype_mismatch.look
def dtype_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different types."""
    from ddpdoctor.rules.log.fingerprints import fingerprints

    named = fingerprints(log, "Tensor dtypes")
    if named is not None:
        yield named
