"""GPU004: a GPU that NVML lists but CUDA cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

OTHER_CAUSES = ("GPU_IS_LOST", "RESET_REQUIRED", "NO_PERMISSION", "NOT_SUPPORTED", "NO_ANSWER")
"""GPU007, GPU008; a GPU that the container or the job was not given; no answer at all."""
UNAVAILABLE = {2: "out of memory", 46: "device unavailable", 101: "invalid device", 214: "uncorrectable ECC error"}


@cause(
    "GPU004",
    "cuda-device-unavailable",
    Severity.ERROR,
    candidates=("SCRIPT068", "GPU004", "TOPO007"),
    signatures=(
        r"RmInitAdapter failed",
        r"rm_init_adapter failed",
        r"Unexpected error from cudaGetDeviceCount\(\).{0,300}Error [1-79]\d*:",
        r"CUDA error: all CUDA-capable devices are busy",
        r"CUDA error: initialization error",
    ),
)
def cuda_device_unavailable(gpu: Gpu) -> Iterator[Finding]:
    """CUDA cannot start on a GPU of this node: it is busy or broken.

    ## Why it matters
    CUDA fails on this GPU, for example with `CUDA error: all CUDA-capable devices are busy or unavailable`, and starts
    on the others. The traceback points at the first line of the script that uses CUDA, and the other ranks wait.

    ## Fix
    Run `ddpdoctor gpus` on that node: it names the GPU that does not respond and the processes on the others. Then search the
    kernel log: `dmesg | grep RmInitAdapter`.

    ## Example
    In the log of one rank:

        torch.cuda.set_device(local_rank)
        RuntimeError: CUDA error: initialization error

    On that node:

        ddpdoctor gpus
        dmesg | grep -E "RmInitAdapter|Xid"

    ## Source
    nvmlDeviceGetHandleByIndex returns an error that no other cause explains; cuInit returns 2 or 46.
    """
    gpu.need(gpu.devices or None, "devices")
    broken = [(d, d.error) for d in gpu.devices if d.error is not None and d.error not in OTHER_CAUSES]
    silent = [name for name in ("nvml", "cuda_error") if gpu.gap(name) is not None]
    if silent and not broken and gpu.cuda_error not in UNAVAILABLE:
        gpu.need(None, silent[0])
    for device, error in broken:
        yield Finding(
            f"GPU {device.index} cannot be opened (NVML: {error})",
            (Evidence(f"gpu.devices[{device.index}].absent", error, "no error"),),
            fix_command=f"nvidia-smi -q -i {device.index}",
            where=Where(gpu=device.index),
        )
    if gpu.cuda_error in UNAVAILABLE:
        yield Finding(
            f"CUDA cannot start on this node (cuInit returns {gpu.cuda_error}: {UNAVAILABLE[gpu.cuda_error]})",
            (Evidence("gpu.cuda_error", str(gpu.cuda_error), "0"),),
            fix_command="nvidia-smi",
        )


UNAVAILABLE_IN_LOG = (
    r"RmInitAdapter failed",
    r"rm_init_adapter failed",
    r"Unexpected error from cudaGetDeviceCount\(\).{0,300}Error [1-79]\d*:",
    r"CUDA error: all CUDA-capable devices are busy",
)


NOT_STARTED = (r"CUDA error: initialization error",)


@cuda_device_unavailable.look
def cuda_not_started(log: Log) -> Iterator[Finding]:
    """CUDA does not start in a process. The message is the same in a forked child and on a broken GPU."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, UNAVAILABLE_IN_LOG)
    if lines:
        yield finding_of(
            log, lines, "CUDA cannot start on a GPU of this node: it is busy or broken", blames_speaker=True
        )
    lines = [] if lines else matching_lines(log, NOT_STARTED)
    if lines:
        undetermined = (
            "Either a forked process such as a DataLoader worker used CUDA (SCRIPT068), the GPU is busy or broken "
            "(GPU004), or the fabric manager is not running (TOPO007); run `ddpdoctor gpus` on that node to find out"
        )
        yield finding_of(log, lines, "CUDA did not start in this process", undetermined, blames_speaker=True)
