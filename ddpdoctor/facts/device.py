"""One GPU as NVML reports it: properties, state, and the name of NVML's error code where a query failed."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.gaps import Why
from ddpdoctor.light_dataclass import dataclass

__all__ = ["OF_THE_WHOLE_GPU", "Device", "GpuProcess", "MigInstance", "Sample", "absence"]

_ABSENCES = {
    "NOT_SUPPORTED": ("n/a", Why.NOT_HERE),
    "NO_PERMISSION": ("needs root", Why.NEEDS_ROOT),
    "FUNCTION_NOT_FOUND": ("driver too old", Why.NOT_HERE),
    "ARGUMENT_VERSION_MISMATCH": ("driver too old", Why.NOT_HERE),
    "DEPRECATED": ("no longer reported", Why.NOT_HERE),
    "GPU_IS_LOST": ("GPU is lost", Why.UNANSWERED),
    "RESET_REQUIRED": ("needs a reset", Why.UNANSWERED),
    "NO_ANSWER": ("no answer", Why.UNANSWERED),
    "NOT_IN_FILES": ("not in the files", Why.NOT_HERE),
}


OF_THE_WHOLE_GPU = ("GPU_IS_LOST", "RESET_REQUIRED", "NO_ANSWER")
"""Codes that apply to every query to this GPU; other codes apply to one query."""
LOADED_PERCENT = 50
"""The lowest utilization at which a GPU counts as loaded."""


def absence(code: str | None) -> tuple[str, Why]:
    """The skip reason for an NVML code, and its kind. None: no code was recorded."""
    if code is None:
        return "unknown", Why.UNANSWERED
    return _ABSENCES.get(code, (f"NVML: {code}", Why.UNANSWERED))


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU (nvmlDeviceGetComputeRunningProcesses). In a container, pids are the host's.

    `command` is its name, None when this machine shows no such process. `is_ours`: an ancestor of this process, or a rank of
    the job that is examined.
    """

    pid: int
    memory_used_bytes: int | None = None
    command: str | None = None
    user: str | None = None
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device of a GPU, in NVML's order."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A repeated reading of a GPU's counters, `Gpu.sample_seconds` after the first one."""

    clock_event_reasons: int | None = None
    pcie_replays: int | None = None
    thermal_slowdown_ns: int | None = None
    heat_by_driver_ns: int | None = None
    heat_by_hardware_ns: int | None = None
    power_brake_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `index` is NVML's (PCI order); `bus_id` is `0000:3b:00.0`; `minor` is the N of /dev/nvidiaN.

    A field is None when NVML did not return it; `absent[field]` is then the name of NVML's error code
    (`NOT_SUPPORTED`, `NO_PERMISSION`, `GPU_IS_LOST`, …, `NO_ANSWER` after a timeout).
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    minor: int | None = None
    serial: str | None = None
    architecture: int | None = None
    """7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""
    vbios: str | None = None
    inforom_version: str | None = None
    module_id: int | None = None
    """The socket of the board that the GPU is in."""
    pci_id: int | None = None
    """The PCI device in the upper 16 bits, NVIDIA's number in the lower ones: 0x233010de."""
    chassis_serial: str | None = None
    chassis_slot: int | None = None
    chassis_tray: int | None = None
    """Its position in the rack, reported for NVLink domains that span nodes (GB200 NVL72)."""
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """Without the part that the driver reserves, unless `memory_reserved_bytes` is None (drivers before 510)."""
    memory_reserved_bytes: int | None = None
    bar1_total_bytes: int | None = None
    numa_node: int | None = None
    """The NUMA node of the slot (sysfs), None where the platform names none."""
    cpu_affinity: str | None = None
    compute_mode: int | None = None
    """0 default, 2 prohibited, 3 one process."""
    persistence_mode: int | None = None
    virtualization_mode: int | None = None
    """0 bare metal, 1 pass-through, 2 vGPU."""
    mig_mode: int | None = None
    mig_pending: int | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    ecc_mode: int | None = None
    ecc_pending: int | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    """Since the driver was loaded or the GPU was reset."""
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    """Over the card's lifetime."""
    ecc_corrected_dram: int | None = None
    ecc_corrected_sram: int | None = None
    """Corrected since the driver was loaded, in the card's memory and on the chip."""
    ecc_uncorrected_dram: int | None = None
    ecc_uncorrected_sram: int | None = None
    sram_threshold_exceeded: int | None = None
    remap_correctable: int | None = None
    remap_uncorrectable: int | None = None
    remap_pending: int | None = None
    remap_failure: int | None = None
    remap_histogram: tuple[int, ...] | None = None
    """Banks with max, high, partial, low and no spare rows."""
    retired_pages_sbe: int | None = None
    retired_pages_dbe: int | None = None
    retired_pages_pending: int | None = None
    channel_repair_pending: int | None = None
    tpc_repair_pending: int | None = None
    memory_unrepairable: int | None = None
    """NVML 13: repairs that the next reset makes, and memory that none can repair."""
    inforom: str | None = None
    """`OK`, or the error code of nvmlDeviceValidateInforom: `CORRUPTED_INFOROM`."""
    recovery_action: int | None = None
    """Field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, 7 reboot."""
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    temperature_margin_celsius: int | None = None
    """T.Limit: degrees left until the slowdown begins (Ada and later)."""
    temperature_slowdown_celsius: int | None = None
    temperature_shutdown_celsius: int | None = None
    temperature_most_celsius: int | None = None
    memory_temperature_most_celsius: int | None = None
    """Absolute, and reported before Ada only: later cards report margins instead."""
    shutdown_margin_celsius: int | None = None
    slowdown_margin_celsius: int | None = None
    memory_margin_celsius: int | None = None
    gpu_margin_celsius: int | None = None
    """Fields 193 to 196: the T.Limit values at shutdown, at slowdown, and at the maximum operating temperatures."""
    power_usage_mw: int | None = None
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    power_least_mw: int | None = None
    power_most_mw: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    app_clock_mhz: int | None = None
    app_clock_default_mhz: int | None = None
    """The SM application clock, as set and by default; both may be below the maximum."""
    clock_event_reasons: int | None = None
    """The bits of nvmlDeviceGetCurrentClocksEventReasons: 1 idle, 8 HW slowdown, 0x40 HW thermal, 0x80 power brake."""
    thermal_slowdown_ns: int | None = None
    """How long the clocks were reduced because of heat since the driver was loaded."""
    power_violation_ns: int | None = None
    power_cap_ns: int | None = None
    """The same for power: nvmlDeviceGetViolationStatus, and field 74."""
    heat_by_driver_ns: int | None = None
    heat_by_hardware_ns: int | None = None
    power_brake_ns: int | None = None
    """Fields 269 to 271, from driver 580 on."""
    utilization_percent: int | None = None
    performance_state: int | None = None
    pcie_generation: int | None = None
    """The current one. It falls while the GPU is idle, so alone it is not a sign of a fault."""
    pcie_generation_max: int | None = None
    pcie_generation_gpu: int | None = None
    """What the GPU supports; `pcie_generation_max` is the lower of GPU and slot."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    """Since the driver was loaded. A nonzero count alone is not a fault."""
    pcie_recoveries: int | None = None
    pcie_correctable_errors: int | None = None
    pcie_nonfatal_errors: int | None = None
    pcie_fatal_errors: int | None = None
    gsp_mode: int | None = None
    """1: GSP firmware is in use."""
    gsp_version: str | None = None
    c2c_links: int | None = None
    c2c_state: int | None = None
    """1: the links between CPU and GPU of one board are up (Grace)."""
    c2c_mb_per_s: int | None = None
    gpu_numa_id: int | None = None
    """The NUMA node of the GPU's own memory (Grace); the kernel may place pages of any process there."""
    protected_memory_bytes: int | None = None
    """Memory that confidential computing encrypts."""
    addressing_mode: int | None = None
    """NVML 13: how the GPU reaches pageable host memory: 0 not at all, 1 HMM, 2 ATS."""
    nvlink_bandwidth_mode: int | None = None
    """NVML 13: 0 full, 1 off, 2 minimum, 3 half, 4 three quarters."""
    graphics_processes: int | None = None
    mps_processes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    between: Sample | None = None
    later: Sample | None = None
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The device node, `/dev/nvidia3`."""
        return None if self.minor is None else f"/dev/nvidia{self.minor}"

    @property
    def error(self) -> str | None:
        """NVML's error code for the whole GPU (no handle, or the same error for every query); None for a GPU that responds."""
        code = self.absent.get("handle")
        if code or self.uuid is not None:
            return code
        first = self.absent.get("uuid")
        return first if first in OF_THE_WHOLE_GPU else None

    @property
    def is_loaded(self) -> bool:
        """The GPU was busy during collection, so clocks and PCIe links that drop when idle were at full speed."""
        return (self.utilization_percent or 0) >= LOADED_PERCENT

    def lasting(self, reason: int) -> bool | None:
        """Whether a clock event reason was set in at least two samples; None with fewer than two samples."""
        samples = [
            self.clock_event_reasons,
            *(s.clock_event_reasons for s in (self.between, self.later) if s is not None),
        ]
        known = [bits for bits in samples if bits is not None]
        return None if len(known) < 2 else sum(bool(bits & reason) for bits in known) >= 2

    def grown(self, name: str) -> int | None:
        """How much a counter grew from the first to the last sample; None unless both have it."""
        before, after = getattr(self, name), getattr(self.later, name, None)
        return None if before is None or after is None else after - before

    def says(self, name: str) -> str:
        """A field as text: its value, or the reason why it is missing ("n/a", "needs root", "GPU is lost")."""
        value = getattr(self, name)
        return absence(self.absent.get(name))[0] if value is None else str(value)
