"""LOG011, LOG020: errors of CUDA that name the wrong place, or that have several causes."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity
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
    ),
)
def asynchronous_cuda_error() -> None:
    """A CUDA kernel failed earlier than the line that reports it.

    ## Why it matters
    "CUDA error: an illegal memory access was encountered" or "device-side assert triggered" comes from the watchdog's
    thread or from a later, innocent line of Python, because kernels run asynchronously. An index out of range (labels,
    embeddings), a custom kernel, or a sick GPU may be behind it.

    ## Fix
    Run that rank's part alone with CUDA_LAUNCH_BLOCKING=1; the traceback then ends at the kernel. Check the range of labels
    and of embedding indices. The same GPU in unlike jobs: look for Xid lines in its kernel log.
    """


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
    """A rank selects a GPU number that does not exist for it.

    ## Why it matters
    "CUDA error: invalid device ordinal", followed by advice about device-side assertions that does not apply. More
    processes than GPUs, the global rank used as index, a CUDA_VISIBLE_DEVICES that is cut at a wrong entry, or one GPU
    per rank while the script selects cuda:LOCAL_RANK.

    ## Fix
    Compare, for the rank that failed, LOCAL_RANK, CUDA_VISIBLE_DEVICES and torch.cuda.device_count(); select the device
    with torch.cuda.set_device(int(os.environ["LOCAL_RANK"])). `ddpdoctor check -- LAUNCH…` says which of the four it is.
    """
