"""`gpu`: what NVML says of the devices and the driver; AMD and Intel devices are named, not judged."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Device", "Gpu"]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `index` is NVML's (PCI order); `bus_id` is `0000:3b:00.0`; memory in bytes."""

    index: int
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    minor: int | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu(Section):
    """The GPUs of one node. `driver_cuda` is nvmlSystemGetCudaDriverVersion_v2: 13000 is CUDA 13.0.

    `nvml_error` is the name of the code that nvmlInit answered (`LIBRARY_NOT_FOUND`, `DRIVER_NOT_LOADED`, …), None when
    it worked. `kernel_driver` is the version of the loaded kernel module (/proc/driver/nvidia/version).
    """

    driver_version: str | None = None
    driver_cuda: int | None = None
    kernel_driver: str | None = None
    nvml_error: str | None = None
    devices: tuple[Device, ...] = ()
    gaps: tuple[Gap, ...] = ()
