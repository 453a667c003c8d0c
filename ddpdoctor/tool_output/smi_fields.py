"""Which lines of `nvidia-smi -q` and elements of `nvidia-smi -q -x` are which fields of the facts, from driver 418 to 595."""

from __future__ import annotations

from ddpdoctor.tool_output.smi_values import Reader, count, flag, mebibytes, milliwatts, nanoseconds, text_of, word_of

__all__ = ["EVENT_BITS", "FIELDS", "HEALTH_BITS", "HISTOGRAM", "SUMS", "field_of"]

_COMPUTE_MODES = {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3, "e. process": 3}
_VIRTUAL = {"none": 0, "pass-through": 1, "passthrough": 1, "vgpu": 2, "host vgpu": 3, "host vsga": 4, "vsga": 4}
_ACTIONS = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
_ARCHITECTURES = {
    "kepler": 2,
    "maxwell": 3,
    "pascal": 4,
    "volta": 5,
    "turing": 6,
    "ampere": 7,
    "ada lovelace": 8,
    "hopper": 9,
    "blackwell": 10,
}

FIELDS: dict[str, tuple[str, Reader]] = {
    "product name": ("name", text_of),
    "product architecture": ("architecture", word_of(_ARCHITECTURES)),
    "persistence mode": ("persistence_mode", flag),
    "mig mode/current": ("mig_mode", flag),
    "mig mode/pending": ("mig_pending", flag),
    "serial number": ("serial", text_of),
    "minor number": ("minor", count),
    "vbios version": ("vbios", text_of),
    "inforom version/image version": ("inforom_version", text_of),
    "gpu virtualization mode/virtualization mode": ("virtualization_mode", word_of(_VIRTUAL)),
    "gpu recovery action": ("recovery_action", word_of(_ACTIONS)),
    "gsp firmware version": ("gsp_version", text_of),
    "pci/gpu link info/pcie generation/current": ("pcie_generation", count),
    "pci/gpu link info/pcie generation/max": ("pcie_generation_max", count),
    "pci/gpu link info/pcie generation/device max": ("pcie_generation_gpu", count),
    "pci/gpu link info/link width/current": ("pcie_width", count),
    "pci/gpu link info/link width/max": ("pcie_width_max", count),
    "pci/replays since reset": ("pcie_replays", count),
    "performance state": ("performance_state", count),
    "fb memory usage/total": ("memory_total_bytes", mebibytes),
    "fb memory usage/reserved": ("memory_reserved_bytes", mebibytes),
    "fb memory usage/used": ("memory_used_bytes", mebibytes),
    "bar1 memory usage/total": ("bar1_total_bytes", mebibytes),
    "compute mode": ("compute_mode", word_of(_COMPUTE_MODES)),
    "utilization/gpu": ("utilization_percent", count),
    "ecc mode/current": ("ecc_mode", flag),
    "ecc mode/pending": ("ecc_pending", flag),
    "ecc errors/aggregate/sram threshold exceeded": ("sram_threshold_exceeded", flag),
    "ecc errors/channel repair pending": ("channel_repair_pending", flag),
    "ecc errors/tpc repair pending": ("tpc_repair_pending", flag),
    "ecc errors/unrepairable memory": ("memory_unrepairable", flag),
    "retired pages/single bit ecc": ("retired_pages_sbe", count),
    "retired pages/double bit ecc": ("retired_pages_dbe", count),
    "retired pages/pending page blacklist": ("retired_pages_pending", flag),
    "remapped rows/correctable error": ("remap_correctable", count),
    "remapped rows/uncorrectable error": ("remap_uncorrectable", count),
    "remapped rows/pending": ("remap_pending", flag),
    "remapped rows/remapping failure occurred": ("remap_failure", flag),
    "temperature/gpu current temp": ("temperature_celsius", count),
    "temperature/memory current temp": ("memory_temperature_celsius", count),
    "temperature/gpu t.limit temp": ("temperature_margin_celsius", count),
    "temperature/gpu shutdown temp": ("temperature_shutdown_celsius", count),
    "temperature/gpu slowdown temp": ("temperature_slowdown_celsius", count),
    "temperature/gpu max operating temp": ("temperature_most_celsius", count),
    "temperature/memory max operating temp": ("memory_temperature_most_celsius", count),
    "temperature/gpu shutdown t.limit temp": ("shutdown_margin_celsius", count),
    "temperature/gpu slowdown t.limit temp": ("slowdown_margin_celsius", count),
    "temperature/memory max operating t.limit temp": ("memory_margin_celsius", count),
    "temperature/gpu max operating t.limit temp": ("gpu_margin_celsius", count),
    "power readings/power draw": ("power_usage_mw", milliwatts),
    "power readings/power limit": ("power_limit_mw", milliwatts),
    "power readings/default power limit": ("power_default_mw", milliwatts),
    "power readings/min power limit": ("power_least_mw", milliwatts),
    "power readings/max power limit": ("power_most_mw", milliwatts),
    "clocks/sm": ("sm_clock_mhz", count),
    "clocks/memory": ("memory_clock_mhz", count),
    "max clocks/sm": ("sm_clock_max_mhz", count),
    "max clocks/memory": ("memory_clock_max_mhz", count),
    "applications clocks/graphics": ("app_clock_mhz", count),
    "default applications clocks/graphics": ("app_clock_default_mhz", count),
    "event counters/sw thermal slowdown": ("heat_by_driver_ns", nanoseconds),
    "event counters/hw thermal slowdown": ("heat_by_hardware_ns", nanoseconds),
    "event counters/hw power braking": ("power_brake_ns", nanoseconds),
    "event counters/sw power capping": ("power_cap_ns", nanoseconds),
}
"""Paths of labels in lower case, and the device field that each is. Elements of the XML form are renamed to these paths."""

SUMS = {
    "ecc errors/volatile/sram correctable": ("ecc_corrected_volatile", "ecc_corrected_sram"),
    "ecc errors/volatile/dram correctable": ("ecc_corrected_volatile", "ecc_corrected_dram"),
    "ecc errors/volatile/sram uncorrectable": ("ecc_uncorrected_volatile", "ecc_uncorrected_sram"),
    "ecc errors/volatile/sram uncorrectable parity": ("ecc_uncorrected_volatile", "ecc_uncorrected_sram"),
    "ecc errors/volatile/sram uncorrectable sec-ded": ("ecc_uncorrected_volatile", "ecc_uncorrected_sram"),
    "ecc errors/volatile/dram uncorrectable": ("ecc_uncorrected_volatile", "ecc_uncorrected_dram"),
    "ecc errors/volatile/single bit/total": ("ecc_corrected_volatile",),
    "ecc errors/volatile/double bit/total": ("ecc_uncorrected_volatile",),
    "ecc errors/aggregate/sram correctable": ("ecc_corrected_aggregate",),
    "ecc errors/aggregate/dram correctable": ("ecc_corrected_aggregate",),
    "ecc errors/aggregate/sram uncorrectable": ("ecc_uncorrected_aggregate",),
    "ecc errors/aggregate/sram uncorrectable parity": ("ecc_uncorrected_aggregate",),
    "ecc errors/aggregate/sram uncorrectable sec-ded": ("ecc_uncorrected_aggregate",),
    "ecc errors/aggregate/dram uncorrectable": ("ecc_uncorrected_aggregate",),
    "ecc errors/aggregate/single bit/total": ("ecc_corrected_aggregate",),
    "ecc errors/aggregate/double bit/total": ("ecc_uncorrected_aggregate",),
}
"""Counters that are added to fields: newer drivers print the memory and the chip separately, and two kinds of parity."""

EVENT_BITS = {
    "idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
}
"""The bits of nvmlDeviceGetCurrentClocksEventReasons by the labels under `Clocks Event Reasons`."""

HISTOGRAM = ("max", "high", "partial", "low", "none")

HEALTH_BITS = {
    "bandwidth": (0, {"degraded": 1, "full": 2}),
    "route recovery in progress": (2, {"true": 1, "false": 2}),
    "route unhealthy": (4, {"true": 1, "false": 2}),
    "access timeout recovery": (6, {"true": 1, "false": 2}),
}
"""Two bits of the fabric health mask for each label (nvml.h: NVML_GPU_FABRIC_HEALTH_MASK_*)."""

_SYNONYMS = {
    "gpu power readings": "power readings",
    "throttle": "event",
    "ecc mode": "ecc mode",
    "current power limit": "power limit",
    "average power draw": "power draw",
    "requested power limit": "requested power limit",
    "enforced power limit": "enforced power limit",
}

_ELEMENTS = {
    "product_architecture": "product architecture",
    "mig_mode/current_mig": "mig mode/current",
    "mig_mode/pending_mig": "mig mode/pending",
    "serial": "serial number",
    "inforom_version/img_version": "inforom version/image version",
    "gpu_virtualization_mode/virtualization_mode": "gpu virtualization mode/virtualization mode",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pci/gpu link info/pcie generation/current",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pci/gpu link info/pcie generation/max",
    "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "pci/gpu link info/pcie generation/device max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pci/gpu link info/link width/current",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pci/gpu link info/link width/max",
    "pci/replay_counter": "pci/replays since reset",
    "fb_memory_usage/total": "fb memory usage/total",
    "fb_memory_usage/reserved": "fb memory usage/reserved",
    "fb_memory_usage/used": "fb memory usage/used",
    "bar1_memory_usage/total": "bar1 memory usage/total",
    "utilization/gpu_util": "utilization/gpu",
    "ecc_mode/current_ecc": "ecc mode/current",
    "ecc_mode/pending_ecc": "ecc mode/pending",
    "ecc_errors/aggregate/sram_threshold_exceeded": "ecc errors/aggregate/sram threshold exceeded",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired pages/single bit ecc",
    "retired_pages/double_bit_retirement/retired_count": "retired pages/double bit ecc",
    "retired_pages/pending_blacklist": "retired pages/pending page blacklist",
    "retired_pages/pending_retirement": "retired pages/pending page blacklist",
    "remapped_rows/remapped_row_corr": "remapped rows/correctable error",
    "remapped_rows/remapped_row_unc": "remapped rows/uncorrectable error",
    "remapped_rows/remapped_row_pending": "remapped rows/pending",
    "remapped_rows/remapped_row_failure": "remapped rows/remapping failure occurred",
    "temperature/gpu_temp": "temperature/gpu current temp",
    "temperature/memory_temp": "temperature/memory current temp",
    "temperature/gpu_temp_tlimit": "temperature/gpu t.limit temp",
    "temperature/gpu_temp_max_threshold": "temperature/gpu shutdown temp",
    "temperature/gpu_temp_slow_threshold": "temperature/gpu slowdown temp",
    "temperature/gpu_temp_max_gpu_threshold": "temperature/gpu max operating temp",
    "temperature/gpu_temp_max_mem_threshold": "temperature/memory max operating temp",
    "temperature/gpu_temp_max_tlimit_threshold": "temperature/gpu shutdown t.limit temp",
    "temperature/gpu_temp_slow_tlimit_threshold": "temperature/gpu slowdown t.limit temp",
    "temperature/gpu_temp_max_mem_tlimit_threshold": "temperature/memory max operating t.limit temp",
    "temperature/gpu_temp_max_gpu_tlimit_threshold": "temperature/gpu max operating t.limit temp",
    "clocks/sm_clock": "clocks/sm",
    "clocks/mem_clock": "clocks/memory",
    "max_clocks/sm_clock": "max clocks/sm",
    "max_clocks/mem_clock": "max clocks/memory",
    "applications_clocks/graphics_clock": "applications clocks/graphics",
    "default_applications_clocks/graphics_clock": "default applications clocks/graphics",
    "fabric/cliqueid": "fabric/cliqueid",
    "fabric/clusteruuid": "fabric/clusteruuid",
    "ecc_errors/volatile/single_bit/total": "ecc errors/volatile/single bit/total",
    "ecc_errors/volatile/double_bit/total": "ecc errors/volatile/double bit/total",
    "ecc_errors/aggregate/single_bit/total": "ecc errors/aggregate/single bit/total",
    "ecc_errors/aggregate/double_bit/total": "ecc errors/aggregate/double bit/total",
}
_ENDINGS = {
    "clocks_event_reason_gpu_idle": "idle",
    "clocks_throttle_reason_gpu_idle": "idle",
    "display_clocks_setting": "display clock setting",
    "sw_therm_slowdown": "sw thermal slowdown",
    "hw_therm_slowdown": "hw thermal slowdown",
    "hw_power_brake": "hw power braking",
    "sw_power_cap": "sw power capping",
    "sram_uncorrectable_secded": "sram uncorrectable sec-ded",
    "cluster_uuid": "clusteruuid",
    "clique_id": "cliqueid",
}


def field_of(labels: tuple[str, ...], *, is_xml: bool) -> str:
    """The path of a value in the words of the newest text form: `clocks event reasons/hw slowdown`."""
    parts = [label.strip().lower() for label in labels]
    if is_xml:
        parts = _renamed(parts)
    path = "/".join(_SYNONYMS.get(part, part) for part in parts).replace("throttle reasons", "event reasons")
    if path.startswith("clocks event reasons counters/"):
        return path.replace("clocks event reasons counters/", "event counters/")
    return "fabric" + path.partition("/fabric")[2] if path.startswith("gpu fabric") else path


def _renamed(parts: list[str]) -> list[str]:
    """The labels of an element of the XML form."""
    joined = "/".join(parts)
    if joined in _ELEMENTS:
        return _ELEMENTS[joined].split("/")
    last = parts[-1]
    for prefix in ("clocks_event_reasons_counters_", "clocks_event_reason_", "clocks_throttle_reason_"):
        if last.startswith(prefix):
            is_counter = prefix.endswith("counters_")
            rest = last.removeprefix(prefix)
            word = _ENDINGS.get(rest if is_counter else last) or (None if is_counter else _REASONS.get(rest))
            group = "clocks event reasons counters" if is_counter else "clocks event reasons"
            return [group, word or rest.replace("_", " ")]
    return [*(part.replace("_", " ") for part in parts[:-1]), _ENDINGS.get(last, last).replace("_", " ")]


_REASONS = {"display_clocks_setting": "display clock setting"}
