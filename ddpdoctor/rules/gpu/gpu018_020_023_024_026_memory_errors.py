"""Memory faults of a GPU: uncorrected errors, rows that were not remapped, pages that wait for a reset."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged


def _flagged(gpu: Gpu, kind: XidKind | None, field: str, message: str, *, reset: bool = False) -> Iterator[Finding]:
    """A finding for each GPU whose `field` is not 0; where NVML does not tell it, what the kernel's log says of `kind`."""
    found = tuple(logged(gpu, kind, unless=field)) if kind is not None else ()
    yield from found
    for device, value in gpu.each(field, or_none=bool(found)):
        if value:
            yield Finding(
                message.format(gpu=device.index, value=value),
                evidence=(Evidence(f"gpu.devices[{device.index}].{field}", str(value), "0"),),
                fix_command=f"nvidia-smi --gpu-reset -i {device.index}" if reset else None,
                where=Where(gpu=device.index),
            )


@cause(
    "GPU018",
    "ecc-uncorrected",
    Severity.ERROR,
    signatures=(r"uncorrectable ECC error", r"ECC_UNCORRECTABLE", r"NVRM: Xid [^\n]*: 48\b"),
    xids=XidKind.ECC_UNCORRECTED,
    explains=("GPU009", "GPU041", "GPU042"),
)
def ecc_uncorrected(gpu: Gpu) -> Iterator[Finding]:
    """A GPU had uncorrected memory errors since the driver was loaded.

    ## Why it matters
    "uncorrectable ECC error encountered" comes up at an innocent line, because CUDA reports it later; values computed
    before may be wrong.

    ## Fix
    Drain the node and reset the GPU; have it replaced when the errors come back.

    ## Source
    nvmlDeviceGetTotalEccErrors, uncorrected, volatile.
    """
    text = "GPU {gpu} counts {value} uncorrected memory errors since the driver was loaded; expected none"
    yield from _flagged(gpu, XidKind.ECC_UNCORRECTED, "ecc_uncorrected_volatile", text, reset=True)


@cause("GPU020", "ecc-sram-threshold", Severity.ERROR)
def ecc_sram_threshold(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has more SRAM errors than its driver tolerates.

    ## Why it matters
    The driver itself says that the on-chip memory is worn out; the next error may end the job or spoil its values.

    ## Fix
    Take the GPU out of use and have the card replaced.

    ## Source
    nvmlDeviceGetSramEccErrorStatus, bThresholdExceeded.
    """
    yield from _flagged(
        gpu,
        None,
        "sram_threshold_exceeded",
        "GPU {gpu} is over its SRAM error threshold; expected below",
    )


@cause(
    "GPU023",
    "row-remap-failed",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: 64\b",),
    xids=XidKind.ROW_REMAP_FAILED,
    explains=("GPU009", "GPU018", "GPU024", "GPU041", "GPU042"),
)
def row_remap_failed(gpu: Gpu) -> Iterator[Finding]:
    """A GPU could not remap a faulty memory row.

    ## Why it matters
    Xid 64: no spare row was left for a faulty one, so that the fault stays in the memory that jobs use.

    ## Fix
    Reset the GPU once; have the card replaced when the failure stays.

    ## Source
    nvmlDeviceGetRemappedRows, failure.
    """
    yield from _flagged(
        gpu,
        XidKind.ROW_REMAP_FAILED,
        "remap_failure",
        "GPU {gpu} could not remap a faulty memory row; expected no failure",
    )


@cause(
    "GPU024",
    "row-remap-pending",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: 63\b",),
    xids=XidKind.ROW_REMAP_PENDING,
    explains=("GPU009", "GPU018", "GPU041", "GPU042"),
)
def row_remap_pending(gpu: Gpu) -> Iterator[Finding]:
    """A GPU waits for a reset to remap a faulty memory row.

    ## Why it matters
    Until the reset the faulty row is in use, and can end the job with an uncorrectable ECC error.

    ## Fix
    Reset the GPU before the next job.

    ## Source
    nvmlDeviceGetRemappedRows, pending.
    """
    text = "GPU {gpu} waits for a reset to remap a faulty memory row; expected none pending"
    yield from _flagged(gpu, XidKind.ROW_REMAP_PENDING, "remap_pending", text, reset=True)


@cause("GPU026", "retired-pages-pending", Severity.ERROR)
def retired_pages_pending(gpu: Gpu) -> Iterator[Finding]:
    """A GPU waits for a reboot to retire a faulty memory page.

    ## Why it matters
    The faulty page is in use until the driver is loaded again, and can end the job.

    ## Fix
    Reset the GPU or reboot the node before the next job.

    ## Source
    nvmlDeviceGetRetiredPagesPendingStatus (cards before Ampere).
    """
    text = "GPU {gpu} waits for a reset to retire a faulty memory page; expected none pending"
    yield from _flagged(gpu, None, "retired_pages_pending", text, reset=True)
