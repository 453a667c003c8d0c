"""SCRIPT028 and SCRIPT029: one collective, called with different sizes or dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.simulation.call_arguments import ArgumentKind, unlike_arguments
from ddpdoctor.scripts.syntax.module import modules

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT028", "collective-shape-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.RAGGED_SHAPES, MistakeKind.SHAPE_OF_OWN_DATA)
def collective_shape_mismatch(script: Script) -> Iterator[Finding]:
    """The ranks call one collective with different sizes.

    ## Why it matters
    The sizes are not compared before the data is sent: Gloo returns a plausible result on one rank and fails or hangs
    on the others (`op.preamble.length <= op.nbytes. 20 vs 16`), often in a later call, and NCCL hangs or overwrites
    memory. Only TORCH_DISTRIBUTED_DEBUG=DETAIL reports `Detected mismatch between collectives on ranks`.

    ## Fix
    Make the sizes equal on all ranks: pad to the longest, or all_gather the sizes first.

    The usual sources are a smaller last batch, and a metric over a list whose length depends on the data.

    ## Example
        # before
        scores = torch.tensor(own_scores)  # as long as the data of this rank
        dist.all_reduce(scores)
        # op.preamble.length <= op.nbytes. 20 vs 16

        # after
        scores = torch.zeros(max_items)
        scores[: len(own_scores)] = torch.tensor(own_scores)
        dist.all_reduce(scores)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp (CollectiveFingerPrint), gloo/transport/tcp/pair.cc.
    """
    for module in modules(script):
        for unlike in unlike_arguments(module):
            if unlike.kind not in (ArgumentKind.SHAPE, ArgumentKind.LENGTH):
                continue
            is_list = unlike.kind == ArgumentKind.LENGTH
            sizes = [f"{v} objects" if is_list else _sized(v) for v in unlike.values]
            yield point(
                module,
                unlike.event.call,
                f"{code(module, unlike.event.call.func, 40)}() gets {sizes[0]} on rank {unlike.rank} and {sizes[1]} "
                f"on rank {unlike.other_rank}",
                "the same size on all ranks",
                label="the sizes differ between ranks",
            )


@cause("SCRIPT029", "collective-dtype-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_dtype_mismatch(script: Script) -> Iterator[Finding]:
    """The ranks call one collective with different dtypes.

    ## Why it matters
    One side returns values that were never reduced; the other ends with SIGABRT (`op.preamble.length <= op.nbytes`),
    hangs, or reads the bytes as another type. The loss is then 1e-38 or NaN, without any error.

    ## Fix
    Cast the tensor to one dtype on all ranks before the collective.

    The usual source is a metric that is an int on ranks with data and a float zero on the others.

    ## Example
        # before
        total = torch.tensor(sum(counts) if counts else 0.0)  # int64 on some ranks, float32 on others
        dist.all_reduce(total)

        # after
        total = torch.tensor(sum(counts), dtype=torch.float32)
        dist.all_reduce(total)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp (CollectiveFingerPrint).
    """
    for module in modules(script):
        for unlike in unlike_arguments(module):
            if unlike.kind == ArgumentKind.DTYPE:
                yield point(
                    module,
                    unlike.event.call,
                    f"{code(module, unlike.event.call.func, 40)}() gets {unlike.values[0]} on rank {unlike.rank} and "
                    f"{unlike.values[1]} on rank {unlike.other_rank}",
                    "the same dtype on all ranks",
                    label="the dtypes differ between ranks",
                )


def _sized(shape: object) -> str:
    """A shape as PyTorch prints it: `[4, 8]`."""
    return str(list(shape)) if isinstance(shape, tuple) else str(shape)


@collective_shape_mismatch.look
def shape(hang: Hang) -> Iterator[Finding]:
    """One collective with different sizes."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.SHAPE):
        yield conflict_finding(hang, conflict)


@collective_dtype_mismatch.look
def dtype(hang: Hang) -> Iterator[Finding]:
    """One collective with different dtypes."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.DTYPE):
        yield conflict_finding(hang, conflict)


SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Collectives in which all ranks pass the same number of elements."""


@collective_shape_mismatch.look
def shape_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different sizes."""
    from ddpdoctor.logs.collective_waits import collective_waits
    from ddpdoctor.rules.log.differing_calls import differing_calls
    from ddpdoctor.rules.log.fingerprints import fingerprints

    reported = fingerprints(log, "Tensor shapes")
    if reported is not None:
        yield reported
        return
    waits = [
        wait
        for wait in collective_waits(log)
        if wait.seq is not None and wait.op in SAME_SIZE and wait.size is not None
    ]
    for seq in sorted({wait.seq for wait in waits if wait.seq is not None}):
        same = [wait for wait in waits if wait.seq == seq]
        if (
            len({wait.op for wait in same}) == len({wait.group for wait in same}) == 1
            and len({w.size for w in same}) > 1
        ):
            yield differing_calls(log, same, f"collective number {seq} has different sizes")
            return


@collective_dtype_mismatch.look
def dtype_differs(log: Log) -> Iterator[Finding]:
    """Ranks call one collective with tensors of different types."""
    from ddpdoctor.rules.log.fingerprints import fingerprints

    reported = fingerprints(log, "Tensor dtypes")
    if reported is not None:
        yield reported


@collective_shape_mismatch.look
def shape_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One collective with different sizes."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.SHAPE, label="the sizes differ between ranks")


@collective_dtype_mismatch.look
def dtype_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One collective with different dtypes."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.DTYPE, label="the dtypes differ between ranks")
