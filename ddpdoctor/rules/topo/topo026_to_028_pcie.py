"""TOPO026 to TOPO028: a GPU's PCIe link with too few lanes, low speed or repeated transfers."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Replays per minute and lane by generation, from DCGM."""
REPLAYS_LEAST = 2


def _peers_best(gpu: Gpu, device: Device, field: str) -> int:
    """The best value of a field among the GPUs of the same model."""
    return max((getattr(d, field) or 0 for d in gpu.answering() if d.name == device.name), default=0)


@cause("TOPO026", "pcie-width-low", Severity.WARNING)
def pcie_width_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU uses fewer PCIe lanes than it has.

    ## Why it matters
    A card with 8 lanes, or with one, slows every step down, and nothing is printed.

    ## Fix
    Reseat the card or its riser on that node; check in the BIOS how the lanes are divided.

    ## Example
    ddpdoctor's message:

        GPU 0 uses 8 of 16 PCIe lanes

    On that node, while the job runs:

        nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max --format=csv

    ## Source
    nvmlDeviceGetCurrPcieLinkWidth against nvmlDeviceGetMaxPcieLinkWidth in P0 or under load (idle links may use fewer lanes), and
    the maximum compared with GPUs of the same model.
    """
    for device, width in gpu.each("pcie_width"):
        most, best = device.pcie_width_max or width, _peers_best(gpu, device, "pcie_width_max")
        if device.virtualization_mode:
            continue  # the bridge above it is emulated by the hypervisor
        if width < most and (device.performance_state == 0 or device.is_loaded):
            text = f"GPU {device.index} uses {width} of {most} PCIe lanes"
            yield at(device, "pcie_width", text, str(most))
        elif most < best:
            text = f"GPU {device.index} is connected by {most} PCIe lanes; other GPUs have {best}"
            yield at(device, "pcie_width_max", text, str(best))


@cause("TOPO027", "pcie-generation-low", Severity.WARNING)
def pcie_generation_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's PCIe link is slower than it should be.

    ## Why it matters
    Each lower generation halves the bandwidth to host memory and to the NIC.

    ## Fix
    Check the slot, the riser and the PCIe setting of the BIOS on that node.

    ## Example
    ddpdoctor's message:

        GPU 0: the PCIe link runs at generation 3 under load instead of 5

    On that node, while the job runs:

        nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max --format=csv

    ## Source
    nvmlDeviceGetCurrPcieLinkGeneration under load only (idle links drop to 1, which is normal); GetMaxPcieLinkGeneration, the
    lower of GPU and slot, compared with the other GPUs and with GetGpuMaxPcieLinkGeneration.
    """
    for device, generation in gpu.each("pcie_generation"):
        most, best = device.pcie_generation_max, _peers_best(gpu, device, "pcie_generation_max")
        if device.virtualization_mode or most is None:
            continue
        if device.is_loaded and generation < most:
            text = f"GPU {device.index}: the PCIe link runs at generation {generation} under load instead of {most}"
            yield at(device, "pcie_generation", text, str(most))
        elif most < best:
            text = f"GPU {device.index}: the slot allows PCIe generation {most}; other slots allow {best}"
            yield at(device, "pcie_generation_max", text, str(best))
        elif device.pcie_generation_gpu is not None and most < device.pcie_generation_gpu:
            text = f"GPU {device.index}: the slot allows PCIe generation {most}, the card allows {device.pcie_generation_gpu}"
            yield at(device, "pcie_generation_max", text, str(device.pcie_generation_gpu), severity=Severity.NOTE)


@cause("TOPO028", "pcie-replays-growing", Severity.WARNING)
def pcie_replays_growing(gpu: Gpu) -> Iterator[Finding]:
    """The PCIe replay counter of a GPU is growing fast.

    ## Why it matters
    The signal is bad: transfers are repeated, and the GPU may fall off the bus.

    ## Fix
    Reseat the card or its riser on that node; if the counter keeps growing, replace them.

    ## Example
    ddpdoctor's message:

        GPU 1 repeated 5 PCIe transfers in 0.1 s (limit: 31 per minute)

    On that node, twice, a minute apart:

        nvidia-smi -q -i 1 | grep -i replay

    ## Source
    nvmlDeviceGetPcieReplayCounter twice, against DCGM's rates per minute and lane (1.92 for generation 5). The total over the
    driver's life is not used: healthy cards have hundreds.
    """
    seconds = gpu.sample_seconds
    for device, before in gpu.each("pcie_replays"):
        after = device.later.pcie_replays if device.later is not None else None
        if after is None or not seconds:
            not_here("the replay counters were not sampled twice")
        lanes, generation = device.pcie_width or 16, device.pcie_generation or 1
        rate = (after - before) / seconds * 60
        limit = REPLAYS.get(generation, max(REPLAYS.values())) * lanes
        if after - before >= REPLAYS_LEAST and rate > limit:
            text = f"GPU {device.index} repeated {after - before} PCIe transfers in {seconds:g} s "
            text += f"(limit: {limit:.0f} per minute)"
            yield at(device, "pcie_replays", text, f"< {limit:.0f} per minute")
