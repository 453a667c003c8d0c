"""GPU018, GPU020, GPU023, GPU024, GPU026: memory faults of a GPU that need a reset or a new card."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged


def _flagged(gpu: Gpu, kind: XidKind | None, field: str, message: str, *, reset: bool = False) -> Iterator[Finding]:
    """A finding for each GPU whose `field` is not 0; if NVML has no value, for each Xid of `kind` in the kernel log."""
    from_log = tuple(logged(gpu, kind, unless=field)) if kind is not None else ()
    yield from from_log
    for device, value in gpu.each(field, or_none=bool(from_log)):
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
    signatures=(r"uncorrectable ECC error", r"ECC_UNCORRECTABLE", r"NVRM: Xid [^\n]{0,80}: (48|171|172)\b"),
    xids=XidKind.ECC_UNCORRECTED,
    explains=("GPU009", "GPU041", "GPU042"),
)
def ecc_uncorrected(gpu: Gpu) -> Iterator[Finding]:
    """A GPU had uncorrected memory errors since the driver was loaded.

    ## Why it matters
    CUDA reports `uncorrectable ECC error encountered` later, at an unrelated line. Values computed before that may be wrong.

    ## Fix
    Drain the node and reset the GPU as root (`nvidia-smi --gpu-reset -i N`); if the errors come back, have the card replaced.

    ## Example
    In the log:

        RuntimeError: CUDA error: uncorrectable ECC error encountered

    On that node, as root, for GPU 3:

        nvidia-smi -i 3 -q -d ECC
        nvidia-smi --gpu-reset -i 3

    ## Source
    nvmlDeviceGetTotalEccErrors, uncorrected, volatile.
    """
    text = "GPU {gpu} had uncorrected memory errors since the driver was loaded ({value})"
    yield from _flagged(gpu, XidKind.ECC_UNCORRECTED, "ecc_uncorrected_volatile", text, reset=True)


@cause("GPU020", "ecc-sram-threshold", Severity.ERROR)
def ecc_sram_threshold(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has exceeded its SRAM error threshold.

    ## Why it matters
    The driver itself reports too many errors in the on-chip memory. The next one may end the job or corrupt its
    values.

    ## Fix
    Take the GPU out of service and have the card replaced.

    ## Example
    ddpdoctor's message:

        GPU 5 has exceeded its SRAM error threshold

    On a Slurm cluster, for node gpu-07:

        scontrol update nodename=gpu-07 state=drain reason="GPU 5: SRAM error threshold"

    ## Source
    nvmlDeviceGetSramEccErrorStatus, bThresholdExceeded.
    """
    yield from _flagged(
        gpu,
        None,
        "sram_threshold_exceeded",
        "GPU {gpu} has exceeded its SRAM error threshold",
    )


@cause(
    "GPU023",
    "row-remap-failed",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 64\b",),
    xids=XidKind.ROW_REMAP_FAILED,
    explains=("GPU009", "GPU018", "GPU024", "GPU041", "GPU042"),
)
def row_remap_failed(gpu: Gpu) -> Iterator[Finding]:
    """A GPU could not remap a faulty memory row.

    ## Why it matters
    No spare row was left (Xid 64), so the faulty row stays in the memory that jobs use.

    ## Fix
    Reset the GPU once as root (`nvidia-smi --gpu-reset -i N`); if the failure stays, have the card replaced.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: error recording row remap

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2
        nvidia-smi -i 2 -q -d ROW_REMAPPER

    ## Source
    nvmlDeviceGetRemappedRows, failure.
    """
    yield from _flagged(
        gpu,
        XidKind.ROW_REMAP_FAILED,
        "remap_failure",
        "GPU {gpu} could not remap a faulty memory row",
    )


@cause(
    "GPU024",
    "row-remap-pending",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 63\b",),
    xids=XidKind.ROW_REMAP_PENDING,
    explains=("GPU009", "GPU018", "GPU041", "GPU042"),
)
def row_remap_pending(gpu: Gpu) -> Iterator[Finding]:
    """A GPU needs a reset to remap a faulty memory row.

    ## Why it matters
    Until the reset the faulty row stays in use, and can end the job with `uncorrectable ECC error encountered`.

    ## Fix
    Reset the GPU before the next job, as root on that node: `nvidia-smi --gpu-reset -i N`.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2
        nvidia-smi -i 2 -q -d ROW_REMAPPER

    ## Source
    nvmlDeviceGetRemappedRows, pending.
    """
    text = "GPU {gpu} needs a reset to remap a faulty memory row"
    yield from _flagged(gpu, XidKind.ROW_REMAP_PENDING, "remap_pending", text, reset=True)


@cause("GPU026", "retired-pages-pending", Severity.ERROR)
def retired_pages_pending(gpu: Gpu) -> Iterator[Finding]:
    """A GPU needs a reset to retire a faulty memory page.

    ## Why it matters
    The faulty page stays in use until the driver is loaded again, and can end the job.

    ## Fix
    Reset the GPU as root on that node, or reboot the node, before the next job.

    ## Example
    ddpdoctor's message:

        GPU 1 needs a reset to retire a faulty memory page

    On that node, as root:

        nvidia-smi --gpu-reset -i 1
        nvidia-smi -i 1 -q -d PAGE_RETIREMENT

    ## Source
    nvmlDeviceGetRetiredPagesPendingStatus (cards before Ampere).
    """
    text = "GPU {gpu} needs a reset to retire a faulty memory page"
    yield from _flagged(gpu, None, "retired_pages_pending", text, reset=True)
