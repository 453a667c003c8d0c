"""GPU511: the driver is loaded and has no GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("GPU511", "driver-finds-no-gpu", Severity.ERROR)
def driver_finds_no_gpu(gpu: Gpu) -> Iterator[Finding]:
    """The NVIDIA driver is loaded, but nvidia-smi finds no GPU.

    ## Why it matters
    Every CUDA program on this node ends with `no CUDA-capable device is detected`. Either the GPUs failed to start, and the
    kernel log has `NVRM: RmInitAdapter failed`, or they are not attached to this machine or container.

    ## Fix
    Run `lspci -d 10de:` on the node. If it lists the GPUs, look for `NVRM` in `dmesg` and reboot the node; if it lists
    none, attach the GPUs to the machine, or reseat them.

    ## Example

        $ nvidia-smi
        No devices were found

        lspci -d 10de: && dmesg | grep NVRM
    """
    if gpu.no_device:
        yield Finding(
            "nvidia-smi finds no GPU, although the driver is loaded",
            (Evidence("gpu.no_device", "No devices were found", "at least one GPU"),),
            fix_command="dmesg | grep -i NVRM",
        )
