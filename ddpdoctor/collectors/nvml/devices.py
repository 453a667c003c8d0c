"""Properties and health of one GPU: plain calls, versioned structures, and the second sample of counters."""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import Any

from ddpdoctor.collectors.nvml.query import Asker, Subject, bits, field, members, say

__all__ = ["clock_reasons", "device", "health", "sample", "slowdowns"]

MORE_WORDS = 16
"""CPU and memory masks are queried with at least this many 64-bit words."""

# Fact(s), the NVML function, its arguments after the handle; and if the answer is a structure, its members.
QUERIES: tuple[tuple[tuple[str, ...], str, tuple[Any, ...], tuple[str, ...]], ...] = (
    (("uuid",), "nvmlDeviceGetUUID", (), ()),
    (("name",), "nvmlDeviceGetName", (), ()),
    (("bus_id", "pci_id"), "nvmlDeviceGetPciInfo", (), ("busId,pciDeviceId",)),
    (("minor",), "nvmlDeviceGetMinorNumber", (), ()),
    (("serial",), "nvmlDeviceGetSerial", (), ()),
    (("architecture",), "nvmlDeviceGetArchitecture", (), ()),
    (("vbios",), "nvmlDeviceGetVbiosVersion", (), ()),
    (("inforom_version",), "nvmlDeviceGetInforomImageVersion", (), ()),
    (("module_id",), "nvmlDeviceGetModuleId", (), ()),
    (("cc_major", "cc_minor"), "nvmlDeviceGetCudaComputeCapability", (), ()),
    (("bar1_total_bytes",), "nvmlDeviceGetBAR1MemoryInfo", (), ("bar1Total",)),
    (("compute_mode",), "nvmlDeviceGetComputeMode", (), ()),
    (("persistence_mode",), "nvmlDeviceGetPersistenceMode", (), ()),
    (("virtualization_mode",), "nvmlDeviceGetVirtualizationMode", (), ()),
    (("mig_mode", "mig_pending"), "nvmlDeviceGetMigMode", (), ()),
    (("ecc_mode", "ecc_pending"), "nvmlDeviceGetEccMode", (), ()),
    (("ecc_corrected_volatile",), "nvmlDeviceGetTotalEccErrors", (0, 0), ()),
    (("ecc_uncorrected_volatile",), "nvmlDeviceGetTotalEccErrors", (1, 0), ()),
    (("ecc_corrected_aggregate",), "nvmlDeviceGetTotalEccErrors", (0, 1), ()),
    (("ecc_uncorrected_aggregate",), "nvmlDeviceGetTotalEccErrors", (1, 1), ()),
    (
        ("remap_correctable", "remap_uncorrectable", "remap_pending", "remap_failure"),
        "nvmlDeviceGetRemappedRows",
        (),
        (),
    ),
    (("remap_histogram",), "nvmlDeviceGetRowRemapperHistogram", (), ("max,high,partial,low,none",)),
    (("retired_pages_pending",), "nvmlDeviceGetRetiredPagesPendingStatus", (), ()),
    (("temperature_margin_celsius",), "nvmlDeviceGetMarginTemperature", (), ()),
    (("temperature_shutdown_celsius",), "nvmlDeviceGetTemperatureThreshold", (0,), ()),
    (("temperature_slowdown_celsius",), "nvmlDeviceGetTemperatureThreshold", (1,), ()),
    (("memory_temperature_most_celsius",), "nvmlDeviceGetTemperatureThreshold", (2,), ()),
    (("temperature_most_celsius",), "nvmlDeviceGetTemperatureThreshold", (3,), ()),
    (("power_usage_mw",), "nvmlDeviceGetPowerUsage", (), ()),
    (("power_limit_mw",), "nvmlDeviceGetEnforcedPowerLimit", (), ()),
    (("power_least_mw", "power_most_mw"), "nvmlDeviceGetPowerManagementLimitConstraints", (), ()),
    (("power_default_mw",), "nvmlDeviceGetPowerManagementDefaultLimit", (), ()),
    (("sm_clock_mhz",), "nvmlDeviceGetClockInfo", (1,), ()),
    (("sm_clock_max_mhz",), "nvmlDeviceGetMaxClockInfo", (1,), ()),
    (("memory_clock_mhz",), "nvmlDeviceGetClockInfo", (2,), ()),
    (("memory_clock_max_mhz",), "nvmlDeviceGetMaxClockInfo", (2,), ()),
    (("utilization_percent",), "nvmlDeviceGetUtilizationRates", (), ("gpu",)),
    (("performance_state",), "nvmlDeviceGetPerformanceState", (), ()),
    (("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration", (), ()),
    (("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration", (), ()),
    (("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth", (), ()),
    (("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth", (), ()),
    (("pcie_replays",), "nvmlDeviceGetPcieReplayCounter", (), ()),
    (("pcie_generation_gpu",), "nvmlDeviceGetGpuMaxPcieLinkGeneration", (), ()),
    (("power_violation_ns",), "nvmlDeviceGetViolationStatus", (0,), ("violationTime",)),
    (("thermal_slowdown_ns",), "nvmlDeviceGetViolationStatus", (1,), ("violationTime",)),
    (("ecc_corrected_dram",), "nvmlDeviceGetMemoryErrorCounter", (0, 0, 2), ()),
    (("ecc_uncorrected_dram",), "nvmlDeviceGetMemoryErrorCounter", (1, 0, 2), ()),
    (("ecc_uncorrected_sram",), "nvmlDeviceGetMemoryErrorCounter", (1, 0, 7), ()),
    (("ecc_corrected_sram",), "nvmlDeviceGetMemoryErrorCounter", (0, 0, 7), ()),
    (("gsp_mode", "gsp_default"), "nvmlDeviceGetGspFirmwareMode", (), ()),
    (("gsp_version",), "nvmlDeviceGetGspFirmwareVersion", (), ()),
    (("gpu_numa_id",), "nvmlDeviceGetNumaNodeId", (), ()),
    (("channel_repair_pending", "tpc_repair_pending"), "nvmlDeviceGetRepairStatus", (), ()),
    (("memory_unrepairable",), "nvmlDeviceGetUnrepairableMemoryFlag_v1", (), ()),
    (("addressing_mode",), "nvmlDeviceGetAddressingMode", (), ()),
    (("protected_memory_bytes",), "nvmlDeviceGetConfComputeProtectedMemoryUsage", (), ("total",)),
)
FIELDS = (
    ("recovery_action", 230),
    ("shutdown_margin_celsius", 193),
    ("slowdown_margin_celsius", 194),
    ("memory_margin_celsius", 195),
    ("gpu_margin_celsius", 196),
    ("c2c_links", 170),
    ("c2c_state", 171),
    ("c2c_mb_per_s", 172),
    ("memory_temperature_celsius", 82),
    ("power_cap_ns", 74),
    ("pcie_recoveries", 169),
    ("pcie_correctable_errors", 173),
    ("pcie_nonfatal_errors", 179),
    ("pcie_fatal_errors", 180),
)
"""Fields with the same number in every driver: those above 250 changed between 575 and 580."""
STRUCTURES: tuple[tuple[tuple[str, ...], str, str, int, tuple[str, ...]], ...] = (
    (
        ("sram_threshold_exceeded",),
        "nvmlDeviceGetSramEccErrorStatus",
        "c_nvmlEccSramErrorStatus_v1_t",
        1,
        ("bThresholdExceeded",),
    ),
    (
        ("chassis_serial", "chassis_slot", "chassis_tray"),
        "nvmlDeviceGetPlatformInfo",
        "c_nvmlPlatformInfo_v2_t",
        2,
        ("chassisSerialNumber", "slotNumber", "trayIndex"),
    ),
    (("nvlink_bandwidth_mode",), "nvmlDeviceGetNvlinkBwMode", "c_nvmlNvlinkGetBwMode_v1_t", 1, ("bwMode",)),
)
"""Facts, the function, the structure that it fills, its version, and its members."""
SLOWDOWNS = (("heat_by_driver_ns", 269), ("heat_by_hardware_ns", 270), ("power_brake_ns", 271))
"""How long the clocks were reduced, by cause. These field numbers are valid from driver 580 on."""
SLOWDOWNS_SINCE = 580
GRAPHICS_CLOCK, SM_CLOCK = 0, 1
"""NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM."""


def device(asker: Asker, index: int, handle: Any) -> None:
    """The properties of one GPU, and its plain counters."""
    memory(asker, index, handle)
    for facts, function, args, names in QUERIES:
        asker.ask(index, facts, function, handle, *args, pick=members(names))
    temperature(asker, index, handle)
    application_clocks(asker, index, handle)
    mig(asker, index, handle)
    words = max(MORE_WORDS, ((os.cpu_count() or 1) + 63) // 64)
    asker.ask(index, "cpu_affinity", "nvmlDeviceGetCpuAffinity", handle, words, pick=bits)
    asker.ask(index, "numa_affinity", "nvmlDeviceGetMemoryAffinity", handle, words, 0, pick=bits)


def memory(asker: Asker, index: int, handle: Any) -> None:
    """Memory sizes. Version 2 reports reserved memory separately; version 1 counts it as used."""
    info, code = asker.first(index, "nvmlDeviceGetMemoryInfo", handle, getattr(asker.nvml, "nvmlMemory_v2", 0x02000028))
    facts = ("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes")
    if info is not None:
        for fact, value in zip(facts, (info.total, info.used, info.reserved), strict=True):
            say("=", index, fact, value)
    elif code in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
        asker.ask(index, facts[:2], "nvmlDeviceGetMemoryInfo", handle, pick=lambda v1: (v1.total, v1.used))
        say("!", index, facts[2], code)
    else:
        for fact in facts:
            say("!", index, fact, code)


def temperature(asker: Asker, index: int, handle: Any) -> None:
    """The temperature, with the older function first; drivers without it have the newer one (560 and later)."""
    heat, code = asker.first(index, "nvmlDeviceGetTemperature", handle, 0)
    if code in ("FUNCTION_NOT_FOUND", "DEPRECATED", "NOT_SUPPORTED"):
        again, newer = asker.first(index, "nvmlDeviceGetTemperatureV", handle, 0)
        heat, code = (again, newer) if not newer else (heat, code)
    say(*(("!", index, "temperature_celsius", code) if code else ("=", index, "temperature_celsius", heat)))


def application_clocks(asker: Asker, index: int, handle: Any) -> None:
    """The application clock and its default: of the SMs, else of the graphics domain, which DCGM asks for."""
    for fact, function in (
        ("app_clock_mhz", "nvmlDeviceGetApplicationsClock"),
        ("app_clock_default_mhz", "nvmlDeviceGetDefaultApplicationsClock"),
    ):
        clock, code = asker.first(index, function, handle, SM_CLOCK)
        if code in ("NOT_SUPPORTED", "INVALID_ARGUMENT"):
            again, newer = asker.first(index, function, handle, GRAPHICS_CLOCK)
            clock, code = (again, "") if not newer else (clock, code)
        say(*(("!", index, fact, code) if code else ("=", index, fact, clock)))


def mig(asker: Asker, index: int, handle: Any) -> None:
    """The MIG instances; some slots may be empty."""
    slots, _ = asker.first(index, "nvmlDeviceGetMaxMigDeviceCount", handle)
    for slot in range(slots or 0):
        instance, code = asker.first(index, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if instance is None:
            if code == "NOT_FOUND":
                continue
            return
        asker.ask(f"{index} mig {slot}", "uuid", "nvmlDeviceGetUUID", instance)
        asker.ask(f"{index} mig {slot}", "gpu_instance", "nvmlDeviceGetGpuInstanceId", instance)
        asker.ask(f"{index} mig {slot}", "compute_instance", "nvmlDeviceGetComputeInstanceId", instance)


def health(asker: Asker, index: int, handle: Any) -> None:
    """Queries that need more than a plain call: fields, versioned structures, lists."""
    nvml = asker.nvml
    for fact, number in FIELDS:
        field(asker, index, handle, fact, number)
    asker.ask(index, "retired_pages_sbe", "nvmlDeviceGetRetiredPages", handle, 0, pick=len)
    asker.ask(index, "retired_pages_dbe", "nvmlDeviceGetRetiredPages", handle, 1, pick=len)
    _, code = asker.first(index, "nvmlDeviceValidateInforom", handle)
    if code in ("", "CORRUPTED_INFOROM"):
        say("=", index, "inforom", code or "OK")
    else:
        say("!", index, "inforom", code)
    clock_reasons(asker, index, index, handle)
    asker.ask(
        index,
        "processes",
        "nvmlDeviceGetComputeRunningProcesses",
        handle,
        pick=lambda found: [{"pid": p.pid, "memory_used_bytes": p.usedGpuMemory} for p in found],
    )
    asker.ask(index, "mps_processes", "nvmlDeviceGetMPSComputeRunningProcesses", handle, pick=len)
    asker.ask(index, "graphics_processes", "nvmlDeviceGetGraphicsRunningProcesses", handle, pick=len)
    for facts, function, kind, version, names in STRUCTURES:
        if not hasattr(nvml, kind):
            continue  # an older pynvml
        filled = getattr(nvml, kind)()
        filled.version = ctypes.sizeof(filled) | version << 24
        asker.ask(index, facts, function, handle, ctypes.byref(filled), pick=partial(_members_of, filled, names))


def _members_of(filled: Any, names: tuple[str, ...], _: Any) -> Any:
    """The members of a structure that a call has filled. pynvml returns one-byte numbers as text: they are read as raw bytes."""
    descriptors = [getattr(type(filled), name) for name in names]
    values = [
        bytes(filled)[descriptor.offset] if descriptor.size == 1 else getattr(filled, name)
        for name, descriptor in zip(names, descriptors, strict=True)
    ]
    return values if len(values) > 1 else values[0]


def clock_reasons(asker: Asker, subject: Subject, index: int, handle: Any) -> None:
    """The reasons for the current clocks, with the newer function first (driver 535)."""
    fact = "clock_event_reasons"
    bitmask, code = asker.first(index, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if code == "FUNCTION_NOT_FOUND":
        bitmask, code = asker.first(index, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    say(*(("!", subject, fact, code) if code else ("=", subject, fact, bitmask)))


def slowdowns(asker: Asker, subject: Subject, index: int, handle: Any, driver: str | None) -> None:
    """The newer counters of how long the clocks were reduced."""
    major = (driver or "").partition(".")[0]
    if major.isdecimal() and int(major) >= SLOWDOWNS_SINCE:
        for fact, number in SLOWDOWNS:
            field(asker, index, handle, fact, number, subject=subject)


def sample(asker: Asker, index: int, handle: Any, driver: str | None) -> None:
    """The second sample of counters: their lifetime totals alone are not meaningful."""
    later = f"{index} later"
    slowdowns(asker, later, index, handle, driver)
    clock_reasons(asker, later, index, handle)
    asker.ask(later, "pcie_replays", "nvmlDeviceGetPcieReplayCounter", handle)
    asker.ask(
        later,
        "thermal_slowdown_ns",
        "nvmlDeviceGetViolationStatus",
        handle,
        1,
        pick=lambda status: status.violationTime,
    )
