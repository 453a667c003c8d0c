"""`gpu`: what NVML reports about devices and driver; AMD and Intel devices are listed, not judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from ddpdoctor.facts.device import Device, absence
from ddpdoctor.facts.gaps import CannotLook, Gap, Section, Why
from ddpdoctor.facts.xids import Xid
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Diagnostic", "Gpu", "PciGpu"]

DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A display or accelerator function on the PCI bus; `driver` is the kernel module bound to it, if any."""

    bus_id: str
    vendor: str
    device: str
    driver: str | None = None

    @property
    def is_nvidia(self) -> bool:
        return self.vendor == "10de"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The result of one test of DCGM (`dcgmi diag`, `dcgmi health`), from a file: `status` is pass, warn, fail or skip.

    `gpus` are the GPUs that it names, empty if it names none; `text` is DCGM's own explanation.
    """

    test: str
    status: str
    gpus: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Gpu(Section):
    """The GPUs of one node. `driver_cuda` is nvmlSystemGetCudaDriverVersion_v2: 13000 is CUDA 13.0.

    `nvml_error` is the name of the error code of nvmlInit (`LIBRARY_NOT_FOUND`, `DRIVER_NOT_LOADED`, …), None when
    it worked. `kernel_driver` is the version of the loaded kernel module (/proc/driver/nvidia/version).
    """

    driver_version: str | None = None
    driver_cuda: int | None = None
    kernel_driver: str | None = None
    nvml_error: str | None = None
    devices: tuple[Device, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """The names /dev/nvidia*, without /dev/."""
    kernel_modules: tuple[str, ...] = ()
    """Those of nvidia, nvidia_uvm, nouveau, amdgpu, xe, i915 that are loaded."""
    pci: tuple[PciGpu, ...] = ()
    pci_devices: int | None = None
    """How many devices of any kind the PCI bus shows; None or 0 where /sys does not show it."""
    confidential_computing: bool | None = None
    cuda_error: int | None = None
    """The result of cuInit in a separate process: 0 when CUDA works, 802 before the fabric is set up; None if not called."""
    multicast: dict[str, bool] = field(default_factory=dict)
    """By bus id: whether CUDA supports multicast on the GPU, which NVLink SHARP needs; empty where unknown."""
    sample_seconds: float | None = None
    """The time between the two samples of counters."""
    xids: tuple[Xid, ...] | None = None
    """None where the kernel log cannot be read: that needs root."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Results of DCGM in a file; ddpdoctor does not run DCGM."""
    is_snapshot: bool = False
    """The facts are from the output of nvidia-smi, which shows one moment: nothing was sampled twice."""
    no_device: bool = False
    """nvidia-smi printed `No devices were found`: the driver is loaded and has no GPU."""
    other_accelerators: tuple[str, ...] = ()
    """Names of AMD and Intel accelerators; ddpdoctor does not judge them."""
    gaps: tuple[Gap, ...] = ()

    def recent(self) -> tuple[Xid, ...]:
        """The Xids and SXids of the last 24 hours, since boot.

        Raises:
            CannotLook: the kernel log could not be read.
        """
        self.answering()
        known = self.need(self.xids, "xids")
        return tuple(x for x in known if not x.restarts and (x.age_seconds or 0.0) < DAY_SECONDS)

    def at(self, bus_id: str) -> Device | None:
        """The device at a bus id without function, None when no such device is listed."""
        return next((d for d in self.devices if d.bus_id is not None and d.bus_id.partition(".")[0] == bus_id), None)

    def each(self, name: str, *, or_none: bool = False) -> Iterator[tuple[Device, Any]]:
        """The devices that reported `name`, with its value.

        Raises:
            CannotLook: there is no device, or none reported it and `or_none` is False.
        """
        devices = self.answering()
        known = [(d, value) for d in devices if (value := getattr(d, name)) is not None]
        if not known and not or_none:
            reasons = [absence(d.absent.get(name)) for d in devices]
            worst = next((r for r in reasons if r[1] is Why.UNANSWERED), reasons[0])
            raise CannotLook(f"{name.replace('_', ' ')}: {worst[0]}", worst[1])
        yield from known

    def answering(self) -> tuple[Device, ...]:
        """The devices that NVML returned a handle for.

        Raises:
            CannotLook: there is none.
        """
        self.need(self.devices or None, "devices")
        responding = tuple([d for d in self.devices if d.error is None])
        if not responding:
            raise CannotLook("no GPU responds", Why.UNANSWERED)
        return responding
