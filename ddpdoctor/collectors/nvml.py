"""The child process that talks to NVML: `python -m ddpdoctor.collectors.nvml`, one JSON array a line on standard output.

    ["?", CALL, GPU]             about to ask: the last such line names the call that hung
    ["=", SUBJECT, FACT, VALUE]  an answer; SUBJECT is "node", a GPU's index, "3 link 5" or "0-1"
    ["!", SUBJECT, FACT, CODE]   no answer, and the name of the code that came instead

Every answer is written at once, so that what was said before a hang is not lost. Nothing here judges anything.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

Subject = str | int
MORE_WORDS = 16
"""CPU and memory masks are asked for with at least this many words of 64 bits."""
NO_GPUS = 1

# Fact(s), the NVML function, its arguments after the handle; and where the answer is a structure, its members.
QUERIES: tuple[tuple[tuple[str, ...], str, tuple[Any, ...], tuple[str, ...]], ...] = (
    (("uuid",), "nvmlDeviceGetUUID", (), ()),
    (("name",), "nvmlDeviceGetName", (), ()),
    (("bus_id",), "nvmlDeviceGetPciInfo", (), ("busId",)),
    (("minor",), "nvmlDeviceGetMinorNumber", (), ()),
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
    (("temperature_celsius",), "nvmlDeviceGetTemperature", (0,), ()),
    (("temperature_margin_celsius",), "nvmlDeviceGetMarginTemperature", (), ()),
    (("temperature_slowdown_celsius",), "nvmlDeviceGetTemperatureThreshold", (1,), ()),
    (("power_usage_mw",), "nvmlDeviceGetPowerUsage", (), ()),
    (("power_limit_mw",), "nvmlDeviceGetEnforcedPowerLimit", (), ()),
    (("power_default_mw",), "nvmlDeviceGetPowerManagementDefaultLimit", (), ()),
    (("sm_clock_mhz",), "nvmlDeviceGetClockInfo", (1,), ()),
    (("sm_clock_max_mhz",), "nvmlDeviceGetMaxClockInfo", (1,), ()),
    (("utilization_percent",), "nvmlDeviceGetUtilizationRates", (), ("gpu",)),
    (("performance_state",), "nvmlDeviceGetPerformanceState", (), ()),
    (("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration", (), ()),
    (("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration", (), ()),
    (("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth", (), ()),
    (("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth", (), ()),
    (("pcie_replays",), "nvmlDeviceGetPcieReplayCounter", (), ()),
    (("gpu_numa_id",), "nvmlDeviceGetNumaNodeId", (), ()),
)


class Asker:
    """Asks one question at a time and writes down what came."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        # Not all that pynvml raises is an NVMLError: an old driver, a changed prototype, bytes that are no text.
        self.errors = (
            nvml.NVMLError,
            nvml.NVMLLibraryMismatchError,
            ctypes.ArgumentError,
            AttributeError,
            TypeError,
            ValueError,
        )
        self.codes = {
            getattr(nvml, name): name.removeprefix("NVML_ERROR_")
            for name in dir(nvml)
            if name.startswith("NVML_ERROR_") and isinstance(getattr(nvml, name), int)
        }

    def ask(self, subject: Subject, facts: str | Sequence[str], function: str, *args: Any, pick: Any = None) -> Any:
        """One call. Writes its answer, or its code, for each of `facts`; returns the answer, None without one."""
        names = (facts,) if isinstance(facts, str) else tuple(facts)
        say("?", function, subject)
        try:
            answer = getattr(self.nvml, function)(*args)
            values = plain(pick(answer) if pick else answer, len(names))
        except self.errors as error:
            code = self.code(error)
            for name in names:
                say("!", subject, name, code)
            return None
        for name, value in zip(names, values, strict=True):
            say("=", subject, name, value)
        return answer

    def first(self, subject: Subject, function: str, *args: Any) -> tuple[Any, str]:
        """A call whose answer is not a fact yet: the answer, and "" or the code that came instead."""
        say("?", function, subject)
        try:
            return getattr(self.nvml, function)(*args), ""
        except self.errors as error:
            return None, self.code(error)

    def code(self, error: Exception) -> str:
        """The name of what went wrong: an NVML code's, `CODE_4711` for one that has no name."""
        value = getattr(error, "value", None)
        if value is not None:
            return self.codes.get(value, f"CODE_{value}")
        if isinstance(error, (self.nvml.NVMLLibraryMismatchError, AttributeError)):
            return "FUNCTION_NOT_FOUND"
        return type(error).__name__


def say(*words: Any) -> None:
    """One line, at once: what stands in a buffer is lost when this process is killed."""
    os.write(1, json.dumps(words).encode() + b"\n")


def plain(answer: Any, count: int) -> list[Any]:
    """`count` JSON values: bytes become text."""
    values = list(answer) if count > 1 else [answer]
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} facts")
    return [v.decode() if isinstance(v, bytes) else v for v in values]


def members(names: Sequence[str]) -> Callable[[Any], Any] | None:
    """A reader of structure members; "a,b,c" gives a list."""
    if not names:
        return None
    wanted = names[0].split(",")
    return lambda s: [getattr(s, n) for n in wanted] if len(wanted) > 1 else getattr(s, wanted[0])


def main() -> None:
    """Ask everything: the node, the devices, then what lies between them."""
    import pynvml

    asker = Asker(pynvml)
    _, code = asker.first("node", "nvmlInit")
    if code:
        say("!", "node", "init", code)
        if code in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"):
            return
        if asker.first("node", "nvmlInitWithFlags", NO_GPUS)[1] == "":
            asker.ask("node", "driver_version", "nvmlSystemGetDriverVersion")
        return
    asker.ask("node", "driver_version", "nvmlSystemGetDriverVersion")
    asker.ask("node", "driver_cuda", "nvmlSystemGetCudaDriverVersion_v2")
    count = asker.ask("node", "count", "nvmlDeviceGetCount") or 0
    handles = {}
    for index in range(count):
        handle, code = asker.first(index, "nvmlDeviceGetHandleByIndex", index)
        if code:
            say("!", index, "handle", code)
        else:
            handles[index] = handle
    for ask in (device, health, links):
        for index, handle in handles.items():
            ask(asker, index, handle)
    between(asker, handles)


def device(asker: Asker, index: int, handle: Any) -> None:
    """What one GPU is, and its plain counters."""
    memory(asker, index, handle)
    for facts, function, args, names in QUERIES:
        asker.ask(index, facts, function, handle, *args, pick=members(names))
    mig(asker, index, handle)
    words = max(MORE_WORDS, ((os.cpu_count() or 1) + 63) // 64)
    asker.ask(index, "cpu_affinity", "nvmlDeviceGetCpuAffinity", handle, words, pick=bits)
    asker.ask(index, "numa_affinity", "nvmlDeviceGetMemoryAffinity", handle, words, 0, pick=bits)


def memory(asker: Asker, index: int, handle: Any) -> None:
    """Version 2 tells the reserved part apart; version 1 counts it as used."""
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


def mig(asker: Asker, index: int, handle: Any) -> None:
    """The MIG instances: the slots may have holes."""
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
    """What needs more than a plain call: fields, structures with versions, lists."""
    nvml = asker.nvml
    field(asker, index, handle, "recovery_action", 230)
    asker.ask(index, "retired_pages_sbe", "nvmlDeviceGetRetiredPages", handle, 0, pick=len)
    asker.ask(index, "retired_pages_dbe", "nvmlDeviceGetRetiredPages", handle, 1, pick=len)
    _, code = asker.first(index, "nvmlDeviceValidateInforom", handle)
    if code in ("", "CORRUPTED_INFOROM"):
        say("=", index, "inforom", code or "OK")
    else:
        say("!", index, "inforom", code)
    reasons = "nvmlDeviceGetCurrentClocksEventReasons"
    bitmask, code = asker.first(index, reasons, handle)
    if code == "FUNCTION_NOT_FOUND":
        bitmask, code = asker.first(index, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    say(*(("!", index, "clock_event_reasons", code) if code else ("=", index, "clock_event_reasons", bitmask)))
    asker.ask(
        index,
        "processes",
        "nvmlDeviceGetComputeRunningProcesses",
        handle,
        pick=lambda found: [{"pid": p.pid, "memory_used_bytes": p.usedGpuMemory} for p in found],
    )
    status = getattr(nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if status is not None:
        sram = status()
        sram.version = ctypes.sizeof(sram) | 1 << 24
        asker.ask(
            index,
            "sram_threshold_exceeded",
            "nvmlDeviceGetSramEccErrorStatus",
            handle,
            ctypes.byref(sram),
            pick=lambda _: sram.bThresholdExceeded,
        )


def field(asker: Asker, index: int, handle: Any, fact: str, number: int, scope: int = 0, subject: Subject = "") -> Any:
    """One field value: the call works, and the field answers for itself."""

    def value(found: Any) -> Any:
        if found[0].nvmlReturn:
            raise asker.nvml.NVMLError(found[0].nvmlReturn)
        member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[found[0].valueType]
        return getattr(found[0].value, member)

    found = asker.ask(subject or index, fact, "nvmlDeviceGetFieldValues", handle, [(number, scope)], pick=value)
    return None if found is None else value(found)


def links(asker: Asker, index: int, handle: Any) -> None:
    """The NVLinks of one GPU and its registration with the fabric."""
    fabric(asker, index, handle)
    field(asker, index, handle, "switch_links", 147)
    count = field(asker, index, handle, "link_count", 91)
    limit = asker.nvml.NVML_NVLINK_MAX_LINKS if count is None else count
    for link in range(limit):
        subject = f"{index} link {link}"
        active, code = asker.first(subject, "nvmlDeviceGetNvLinkState", handle, link)
        if code in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "GPU_IS_LOST"):
            say("!", index, "links", code)
            return
        if code:
            say("!", subject, "is_active", code)
            continue
        say("=", subject, "is_active", bool(active))
        if active:
            asker.ask(subject, "version", "nvmlDeviceGetNvLinkVersion", handle, link)
            asker.ask(subject, "remote", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            asker.ask(
                subject, "remote_bus_id", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link, pick=lambda p: p.busId
            )
            field(asker, index, handle, "speed_mb_per_s", 164, link, subject)
        for counter, fact in enumerate(("replay_errors", "recovery_errors", "crc_errors")):
            asker.ask(subject, fact, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)


def fabric(asker: Asker, index: int, handle: Any) -> None:
    """The newest structure that both this pynvml and the driver know."""
    for name, version in (
        ("c_nvmlGpuFabricInfo_v3_t", 3),
        ("c_nvmlGpuFabricInfo_v2_t", 2),
        ("c_nvmlGpuFabricInfo_t", 0),
    ):
        kind = getattr(asker.nvml, name, None)
        if kind is None:
            continue
        info = kind()
        function = "nvmlDeviceGetGpuFabricInfoV" if version else "nvmlDeviceGetGpuFabricInfo"
        if version:
            info.version = ctypes.sizeof(info) | version << 24
        _, code = asker.first(index, function, handle, ctypes.byref(info))
        if code not in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
            break
    else:
        code = "FUNCTION_NOT_FOUND"
    if code:
        say("!", index, "fabric", code)
        return
    known = {
        "state": info.state,
        "status": info.status,
        "clique": info.cliqueId,
        "cluster_uuid": bytes(info.clusterUuid).hex(),
        "health_mask": getattr(info, "healthMask", None),
        "health_summary": getattr(info, "healthSummary", None),
    }
    say("=", index, "fabric", known)


def between(asker: Asker, handles: dict[int, Any]) -> None:
    """Every pair: the PCIe level, and peer access in both directions (0 read, 1 write, 2 NVLink).

    The numbers are written out: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake.
    """
    for a in handles:
        for b in (b for b in handles if b > a):
            pair = f"{a}-{b}"
            asker.ask(pair, "level", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            for number, fact in enumerate(("read", "write", "nvlink")):
                asker.ask(pair, fact, "nvmlDeviceGetP2PStatus", handles[a], handles[b], number)
                asker.ask(pair, f"{fact}_back", "nvmlDeviceGetP2PStatus", handles[b], handles[a], number)


def bits(words: Any) -> str:
    """The set bits of a mask as ranges: `0-55,112-167`, "" for none."""
    numbers = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


if __name__ == "__main__":
    main()
