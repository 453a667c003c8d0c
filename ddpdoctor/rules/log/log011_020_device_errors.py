"""LOG011, LOG020: CUDA errors that name the wrong place or have several causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause

ASSERTED = r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion "
ORDINAL = (r"invalid device ordinal",)


@cause(
    "LOG011",
    "asynchronous-cuda-error",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    yields_to=("LOG512",),
    kind="umbrella",
    signatures=(
        r"illegal memory access was encountered",
        r"device-side assert triggered",
        ASSERTED,
        r"unspecified launch failure",
        r"the launch timed out and was terminated",
        r"CUDA error: misaligned address",
        r"CUDA error: an illegal instruction was encountered",
        r"\b(Memory access fault|HW Exception) by GPU node-\d",
        r"\bHSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|ILLEGAL_INSTRUCTION)\b",
    ),
)
def asynchronous_cuda_error() -> None:
    """A CUDA kernel failed before the line that reports it.

    ## Why it matters
    Kernels run asynchronously: `CUDA error: an illegal memory access was encountered` or `device-side assert triggered` comes
    from the watchdog's thread or from a later Python line that is correct. The reason is an index out of range (labels,
    embeddings), a custom kernel, or a faulty GPU.

    ## Fix
    Run that rank again with CUDA_LAUNCH_BLOCKING=1; the traceback then ends at the kernel. Check the range of labels and
    embedding indices. If the same GPU fails in different jobs, run `sudo dmesg | grep -i xid` on its node.

    ## Example

        RuntimeError: CUDA error: an illegal memory access was encountered

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node 8 train.py
    """


@asynchronous_cuda_error.look
def note_without_error(log: Log) -> Iterator[Finding]:
    """The lines of the error; where the text cuts it, the note that torch prints below each error of CUDA."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.rules.log.signatures import explained, finding_of, signed

    notes = [line for line, _ in context_lines(log, "kernel_note")]
    ranks = {line.who.rank for line in notes} - {None}
    for found in signed(asynchronous_cuda_error, log):
        rank = ranks.pop() if len(ranks) == 1 and not found.ranks else None
        yield found if rank is None else replace(found, ranks=(rank,), where=replace(found.where, rank=rank))
    raised = [each for each in log.tracebacks if each.exception and not each.is_summary]
    if notes and not raised and not explained(log, "cause", "umbrella"):
        yield finding_of(
            log, notes, "a CUDA error, cut off above its note on asynchronous reports", blames_speaker=True
        )


@cause(
    "LOG020",
    "device-ordinal-invalid",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    yields_to=("ENV064",),
    kind="umbrella",
    candidates=("LAUNCH023", "SCRIPT001", "ENV063", "ENV064"),
    signatures=ORDINAL,
)
def device_ordinal_invalid() -> None:
    """The selected GPU number does not exist for this rank.

    ## Why it matters
    `CUDA error: invalid device ordinal` is followed by advice about device-side assertions that does not apply. There are more
    processes than GPUs, the global rank is the index, CUDA_VISIBLE_DEVICES has a wrong entry, or each rank sees one GPU while the
    script selects cuda:LOCAL_RANK.

    ## Fix
    Select the device with `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. On the rank that failed, compare LOCAL_RANK,
    CUDA_VISIBLE_DEVICES, and torch.cuda.device_count(); `ddpdoctor check -- LAUNCH…` shows which of the four reasons it is.

    ## Example

        RuntimeError: CUDA error: invalid device ordinal

        # before
        torch.cuda.set_device(dist.get_rank())
        # after
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """
