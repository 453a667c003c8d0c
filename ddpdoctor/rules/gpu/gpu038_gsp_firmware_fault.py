"""GPU038: the GPU's own system processor."""

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
    signatures=(r"NVRM: Xid [^\n]*: (119|120)\b",),
    xids=XidKind.GSP_FIRMWARE_FAULT,
)
def gsp_firmware_fault(gpu: Gpu) -> Iterator[Finding]:
    """The GSP firmware of a GPU timed out, or is off on a card that needs it.

    ## Why it matters
    Xid 119 or 120: the GPU stops answering, nvidia-smi hangs and the other ranks wait.

    ## Fix
    Reset the GPU and update the driver.

    ## Source
    Xids 119 and 120 in the kernel's log; nvmlDeviceGetGspFirmwareMode answers 0 on Hopper and later.
    """
    gpu.answering()
    yield from logged(gpu, XidKind.GSP_FIRMWARE_FAULT)
    for device in gpu.answering():
        major = (device.compute_capability or "0").partition(".")[0]
        if device.gsp_mode == 0 and major.isdecimal() and int(major) >= HOPPER and device.virtualization_mode != VGPU:
            text = (
                f"the GSP firmware of GPU {device.index} is off; expected on for compute capability {major} and later"
            )
            yield at(device, "gsp_mode", text, "1")
