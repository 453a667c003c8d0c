"""GPU501, GPU502: repairs that a GPU waits for or cannot make, as NVML 13 reports them."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

__all__: list[str] = []

REPAIRS = (("channel_repair_pending", "a memory channel"), ("tpc_repair_pending", "a processing cluster (TPC)"))


@cause("GPU501", "gpu-repair-pending", Severity.WARNING)
def gpu_repair_pending(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has found a faulty unit and repairs it at its next reset.

    ## Why it matters
    Until then the GPU works with the faulty unit: jobs on it may end with ECC errors or slow down.

    ## Fix
    Drain the node and reset the GPU as root (`nvidia-smi --gpu-reset -i N`).

    ## Example
    ddpdoctor's message:

        GPU 3: a repair of a memory channel is pending until its next reset

    On that node, as root, for GPU 3:

        nvidia-smi --gpu-reset -i 3

    ## Source
    nvmlDeviceGetRepairStatus (NVML 13): bChannelRepairPending, bTpcRepairPending.
    """
    known = [
        (device, name, words, value)
        for device in gpu.answering()
        for name, words in REPAIRS
        if (value := getattr(device, name)) is not None
    ]
    if not known:
        not_here("the driver reports no repairs (NVML 13 does)")
    for device, name, words, value in known:
        if value:
            yield Finding(
                f"GPU {device.index}: a repair of {words} is pending until its next reset",
                (Evidence(f"gpu.devices[{device.index}].{name}", str(value), "0"),),
                fix_command=f"nvidia-smi --gpu-reset -i {device.index}",
                where=Where(gpu=device.index),
            )


@cause("GPU502", "gpu-memory-unrepairable", Severity.ERROR)
def gpu_memory_unrepairable(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's memory has a fault that it cannot repair.

    ## Why it matters
    Row remapping and the retirement of a channel are no longer possible: jobs end with uncorrectable ECC errors, also after
    a reset.

    ## Fix
    Take the GPU out of service and have the card replaced.

    ## Example
    ddpdoctor's message:

        GPU 3 reports memory that cannot be repaired

    On that node, as root, for GPU 3:

        nvidia-smi drain -p $(nvidia-smi -i 3 --query-gpu=pci.bus_id --format=csv,noheader) -m 1

    ## Source
    nvmlDeviceGetUnrepairableMemoryFlag_v1 (NVML 13).
    """
    known = [(d, d.memory_unrepairable) for d in gpu.answering() if d.memory_unrepairable is not None]
    if not known:
        not_here("the driver does not report unrepairable memory (NVML 13 does)")
    for device, value in known:
        if value:
            yield Finding(
                f"GPU {device.index} reports memory that cannot be repaired",
                (Evidence(f"gpu.devices[{device.index}].memory_unrepairable", str(value), "0"),),
                where=Where(gpu=device.index),
            )
