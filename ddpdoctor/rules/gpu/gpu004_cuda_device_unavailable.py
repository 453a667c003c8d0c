"""GPU004: a GPU that NVML lists and CUDA cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

TOLD_ELSEWHERE = ("GPU_IS_LOST", "RESET_REQUIRED", "NO_PERMISSION", "NOT_SUPPORTED", "NO_ANSWER")
"""GPU007, GPU008; a GPU that a container or a job was not given; no answer at all."""
UNAVAILABLE = {2: "out of memory", 46: "device unavailable", 101: "invalid device", 214: "uncorrectable ECC error"}


@cause(
    "GPU004",
    "cuda-device-unavailable",
    Severity.ERROR,
    candidates=("SCRIPT068", "GPU004", "TOPO007"),
    signatures=(
        r"RmInitAdapter failed",
        r"rm_init_adapter failed",
        r"Unexpected error from cudaGetDeviceCount\(\).*Error [1-79]\d*:",
        r"CUDA error: all CUDA-capable devices are busy",
        r"CUDA error: initialization error",
    ),
)
def cuda_device_unavailable(gpu: Gpu) -> Iterator[Finding]:
    """CUDA cannot start on a GPU that is listed: it is busy or broken.

    ## Why it matters
    CUDA starts on some GPUs of the node only, and the traceback points at the first line of the script that touches CUDA, which
    is innocent. The other ranks wait for this one.

    ## Fix
    On that node: nvidia-smi, then `ddpdoctor gpus`, which names the GPU that does not answer and who holds the others; look for
    "RmInitAdapter failed" in the kernel's log.

    ## Source
    nvmlDeviceGetHandleByIndex answers an error that no other cause explains; cuInit answers 2 or 46.
    """
    gpu.need(gpu.devices or None, "devices")
    broken = [(d, d.error) for d in gpu.devices if d.error is not None and d.error not in TOLD_ELSEWHERE]
    silent = [name for name in ("nvml", "cuda_error") if gpu.gap(name) is not None]
    if silent and not broken and gpu.cuda_error not in UNAVAILABLE:
        gpu.need(None, silent[0])
    for device, error in broken:
        yield Finding(
            f"GPU {device.index} answers {error} to NVML's first question; expected a device that answers",
            (Evidence(f"gpu.devices[{device.index}].absent", error, "no such answer"),),
            fix_command=f"nvidia-smi -q -i {device.index}",
            where=Where(gpu=device.index),
        )
    if gpu.cuda_error in UNAVAILABLE:
        yield Finding(
            f"cuInit answers {gpu.cuda_error} ({UNAVAILABLE[gpu.cuda_error]}); expected 0",
            (Evidence("gpu.cuda_error", str(gpu.cuda_error), "0"),),
            fix_command="nvidia-smi",
        )


UNAVAILABLE_in_log = (
    r"RmInitAdapter failed",
    r"rm_init_adapter failed",
    r"Unexpected error from cudaGetDeviceCount\(\).*Error [1-79]\d*:",
    r"CUDA error: all CUDA-capable devices are busy",
)


NOT_STARTED = (r"CUDA error: initialization error",)


@cuda_device_unavailable.look
def cuda_not_started(log: Log) -> Iterator[Finding]:
    """CUDA does not start in a process: it says the same in a forked child as on a GPU that is broken."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, UNAVAILABLE_in_log)
    if lines:
        yield finding_of(
            log, lines, "CUDA cannot start on a GPU that is listed: it is busy or broken", blames_speaker=True
        )
    lines = [] if lines else matching_lines(log, NOT_STARTED)
    if lines:
        undetermined = (
            "Undetermined: a forked child, as a DataLoader's worker, used CUDA (SCRIPT068), the GPU is busy or broken (GPU004), "
            "or the fabric manager does not run (TOPO007); `ddpdoctor gpus` on that node decides"
        )
        yield finding_of(log, lines, "CUDA did not start in this process", undetermined, blames_speaker=True)
