"""GPU038: the firmware of the GPU System Processor (GSP)."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged

HOPPER = 9
VGPU = 2


@cause(
    "GPU038",
    "gsp-firmware-fault",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]{0,80}: (119|120)\b",),
    xids=XidKind.GSP_FIRMWARE_FAULT,
)
def gsp_firmware_fault(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's GSP firmware timed out, or is off where it is required.

    ## Why it matters
    After Xid 119 or 120 the GPU stops responding, nvidia-smi hangs and the other ranks wait.

    ## Fix
    Reset the GPU on that node as root (`nvidia-smi --gpu-reset -i N`) and update the driver.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 119, pid=2121, Timeout after 6s of waiting for RPC response from GPU0 GSP!

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2
        nvidia-smi --query-gpu=driver_version --format=csv

    ## Source
    Xids 119 and 120 in the kernel log; nvmlDeviceGetGspFirmwareMode returns 0 on Hopper and later.
    """
    gpu.answering()
    yield from logged(gpu, XidKind.GSP_FIRMWARE_FAULT)
    for device in gpu.answering():
        major = (device.compute_capability or "0").partition(".")[0]
        if device.gsp_mode == 0 and major.isdecimal() and int(major) >= HOPPER and device.virtualization_mode != VGPU:
            text = f"the GSP firmware of GPU {device.index} is off; compute capability {major} needs it"
            yield at(device, "gsp_mode", text, "1")
