"""TOPO503: NVLink is set to less than its full bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

__all__: list[str] = []

MODES = {1: "off", 2: "minimum", 3: "half", 4: "three quarters"}
"""NVML_GPU_NVLINK_BW_MODE_*; 0 is full."""


@cause("TOPO503", "nvlink-bandwidth-mode-reduced", Severity.WARNING)
def nvlink_bandwidth_mode_reduced(gpu: Gpu) -> Iterator[Finding]:
    """The NVLinks of a GPU are set to less than their full bandwidth.

    ## Why it matters
    All links are up and no error is counted, but every collective inside the node is slower. The setting saves power and is kept
    until it is changed.

    ## Fix
    Set the bandwidth mode back to full as root on that node: `nvidia-smi nvlink -sbwm FULL`.

    ## Example
    ddpdoctor's message:

        GPU 0: NVLink bandwidth mode is half

    On that node, as root:

        # before
        nvidia-smi nvlink -gbwm
        # after
        nvidia-smi nvlink -sbwm FULL

    ## Source
    nvmlDeviceGetNvlinkBwMode (NVML 13).
    """
    known = [(d, d.nvlink_bandwidth_mode) for d in gpu.answering() if d.nvlink_bandwidth_mode is not None]
    if not known:
        not_here("the driver does not report the NVLink bandwidth mode (NVML 13 does)")
    for device, mode in known:
        if mode in MODES:
            yield Finding(
                f"GPU {device.index}: NVLink bandwidth mode is {MODES[mode]}",
                (Evidence(f"gpu.devices[{device.index}].nvlink_bandwidth_mode", MODES[mode], "full"),),
                where=Where(gpu=device.index),
            )
