"""TOPO026 to TOPO028: the GPU's PCIe link: narrow, slow, or repeating itself."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Replays a minute and lane by generation, from DCGM."""
REPLAYS_LEAST = 2


def _peers_best(gpu: Gpu, device: Device, field: str) -> int:
    """The best value of a field among the GPUs of the same model."""
    return max((getattr(d, field) or 0 for d in gpu.answering() if d.name == device.name), default=0)


@cause("TOPO026", "pcie-width-low", Severity.WARNING)
def pcie_width_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU uses fewer PCIe lanes than it has.

    ## Why it matters
    A card with 8 lanes or one is the slowest of every step, and nothing is printed.

    ## Fix
    Reseat the card or its riser; check how the BIOS splits the lanes.

    ## Source
    nvmlDeviceGetCurrPcieLinkWidth against nvmlDeviceGetMaxPcieLinkWidth in P0 or under load (idle links may shrink), and the
    maximum against GPUs of the same model.
    """
    for device, width in gpu.each("pcie_width"):
        most, best = device.pcie_width_max or width, _peers_best(gpu, device, "pcie_width_max")
        if device.virtualization_mode:
            continue  # the bridge above it is the hypervisor's invention
        if width < most and (device.performance_state == 0 or device.is_loaded):
            text = f"GPU {device.index} uses {width} PCIe lanes; expected {most}"
            yield at(device, "pcie_width", text, str(most))
        elif most < best:
            text = f"GPU {device.index} is connected by {most} PCIe lanes; expected {best}, as its neighbours"
            yield at(device, "pcie_width_max", text, str(best))


@cause("TOPO027", "pcie-generation-low", Severity.WARNING)
def pcie_generation_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's PCIe link is slower than it should be under load, or than its neighbours' can be.

    ## Why it matters
    Each generation less halves the way to host memory and to the NIC.

    ## Fix
    Check the slot, the riser and the BIOS setting.

    ## Source
    nvmlDeviceGetCurrPcieLinkGeneration under load only (idle links sink to 1, which is normal); GetMaxPcieLinkGeneration, the
    least of GPU and slot, against the neighbours and GetGpuMaxPcieLinkGeneration.
    """
    for device, generation in gpu.each("pcie_generation"):
        most, best = device.pcie_generation_max, _peers_best(gpu, device, "pcie_generation_max")
        if device.virtualization_mode or most is None:
            continue
        if device.is_loaded and generation < most:
            text = f"the PCIe link of GPU {device.index} runs at generation {generation} under load; expected {most}"
            yield at(device, "pcie_generation", text, str(most))
        elif most < best:
            text = (
                f"the slot of GPU {device.index} allows PCIe generation {most}; expected {best}, as its neighbours have"
            )
            yield at(device, "pcie_generation_max", text, str(best))
        elif device.pcie_generation_gpu is not None and most < device.pcie_generation_gpu:
            text = (
                f"the slot of GPU {device.index} allows PCIe generation {most}, the card {device.pcie_generation_gpu}"
            )
            yield at(device, "pcie_generation_max", text, str(device.pcie_generation_gpu), severity=Severity.NOTE)


@cause("TOPO028", "pcie-replays-growing", Severity.WARNING)
def pcie_replays_growing(gpu: Gpu) -> Iterator[Finding]:
    """The PCIe replay counter of a GPU grows quickly.

    ## Why it matters
    The signal is bad: transfers are repeated, and the GPU may be lost.

    ## Fix
    Reseat card or riser; replace them when it goes on.

    ## Source
    nvmlDeviceGetPcieReplayCounter twice, against DCGM's rates a minute and lane (1.92 for generation 5). The count over the
    driver's life says nothing: healthy cards have hundreds.
    """
    seconds = gpu.sample_seconds
    for device, before in gpu.each("pcie_replays"):
        after = device.later.pcie_replays if device.later is not None else None
        if after is None or not seconds:
            not_here("the replays were not counted twice")
        lanes, generation = device.pcie_width or 16, device.pcie_generation or 1
        rate = (after - before) / seconds * 60
        limit = REPLAYS.get(generation, max(REPLAYS.values())) * lanes
        if after - before >= REPLAYS_LEAST and rate > limit:
            text = f"GPU {device.index} repeated {after - before} PCIe transfers in {seconds:g} s; "
            text += f"expected fewer than {limit:.0f} a minute"
            yield at(device, "pcie_replays", text, f"< {limit:.0f} a minute")
