"""An object to put into `pynvml.nvmlLib`: it answers what a node profile says, so that all of pynvml's own code runs.

It reads the same table as the C library that `library.py` builds. `fail` makes a function answer a code, `missing` functions
are not there at all, as in an old driver. `hang` is a function that never returns: HungError ends the caller, which leaves what
a killed process leaves.
"""

# ruff: noqa: N802 - the methods are named after the functions of NVML

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fakes import library

# fmt: off
PLAIN = {
    "nvmlDeviceGetMinorNumber": "MINOR", "nvmlDeviceGetArchitecture": "ARCH", "nvmlDeviceGetModuleId": "MODULE",
    "nvmlDeviceGetComputeMode": "COMPUTE_MODE", "nvmlDeviceGetPersistenceMode": "PERSISTENCE",
    "nvmlDeviceGetVirtualizationMode": "VIRTUAL", "nvmlDeviceGetRetiredPagesPendingStatus": "RETIRED_PENDING",
    "nvmlDeviceGetPowerUsage": "POWER", "nvmlDeviceGetEnforcedPowerLimit": "POWER_LIMIT",
    "nvmlDeviceGetPowerManagementDefaultLimit": "POWER_DEFAULT", "nvmlDeviceGetPerformanceState": "PSTATE",
    "nvmlDeviceGetCurrPcieLinkGeneration": "GEN", "nvmlDeviceGetMaxPcieLinkGeneration": "GEN_MAX",
    "nvmlDeviceGetCurrPcieLinkWidth": "WIDTH", "nvmlDeviceGetMaxPcieLinkWidth": "WIDTH_MAX",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "GEN_GPU", "nvmlDeviceGetNumaNodeId": "GPU_NUMA",
}
INDEXED = {
    "nvmlDeviceGetTemperature": ("TEMP",), "nvmlDeviceGetTemperatureThreshold": (None, "SLOWDOWN"),
    "nvmlDeviceGetClockInfo": (None, "SM"), "nvmlDeviceGetMaxClockInfo": (None, "SM_MAX"),
    "nvmlDeviceGetApplicationsClock": (None, "APP_SM"), "nvmlDeviceGetDefaultApplicationsClock": (None, "APP_DEFAULT"),
}
FIELDS = {230: "RECOVERY", 147: "SWITCH_LINKS", 170: "C2C", **{n: f"MARGIN_{n}" for n in range(193, 197)}}
# fmt: on
MIG = 1000
"""Handles from here on are instances: 2003 is slot 3 of the second GPU."""
NOT_SUPPORTED, INVALID, INSUFFICIENT, NOT_FOUND, OLD = 3, 2, 7, 6, 25


class Refusal(Exception):
    """A call that answers a code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class HungError(BaseException):
    """A call that would never return."""


class CtypesLibrary:
    """Every function of NVML that a profile has answers for."""

    def __init__(
        self, node: dict[str, Any], *, fail: dict[str, int] | None = None, missing: tuple[str, ...] = (), hang: str = ""
    ) -> None:
        self.node, self.fail, self.missing, self.hang = node, fail or {}, missing, hang
        self.gpus = node["gpus"]
        self.values = [library._values(gpu) for gpu in self.gpus]
        self.calls: list[str] = []
        self.looks: dict[Any, int] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        answer = getattr(type(self), f"_{name.removesuffix('_v2').removesuffix('_v3')}", None)
        if name in self.missing or (answer is None and name not in PLAIN and name not in INDEXED):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == self.hang:
                raise HungError(name)
            if name in self.fail:
                return self.fail[name]
            try:
                if name in PLAIN:
                    put(args[1], self._of(args[0], PLAIN[name]))
                elif name in INDEXED:
                    facts = INDEXED[name]
                    kind = int(getattr(args[1], "value", args[1]))
                    put(args[2], self._of(args[0], facts[kind] if kind < len(facts) else None))
                else:
                    answer(self, *args)
            except Refusal as refusal:
                return refusal.code
            return 0

        return call

    def _at(self, handle: Any) -> int:
        index = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
        self._number(self.values[index]["LOST"])
        return index

    def _of(self, handle: Any, fact: str | None) -> int:
        index = self._at(handle)
        return self._number(library.ABSENT if fact is None else self.values[index][fact])

    def _number(self, value: Any) -> int:
        if value is None:
            value = library.ABSENT
        if isinstance(value, str):
            raise Refusal(library.CODES[value[1:]])
        return int(value)

    def _nvmlInitWithFlags(self, flags: Any) -> None:
        error = self.node["driver"].get("init_error")
        if error:
            raise Refusal(library.CODES[error])

    def _nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> None:
        text.value = self.node["driver"]["version"].encode()

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> None:
        put(out, self.node["driver"]["cuda"])

    def _nvmlSystemGetConfComputeState(self, out: Any) -> None:
        state = self.node.get("confidential_computing", 0)
        if state < 0:
            raise Refusal(NOT_SUPPORTED)
        out._obj.ccFeature = state

    def _nvmlDeviceGetCount(self, out: Any) -> None:
        put(out, len(self.gpus))

    def _nvmlDeviceGetHandleByIndex(self, index: Any, out: Any) -> None:
        self._number(self.values[index.value]["LOST"])
        ctypes.c_void_p.from_buffer(out._obj).value = index.value + 1

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> None:
        parent, slot = divmod(ctypes.cast(handle, ctypes.c_void_p).value or 0, MIG)
        uuid = self._migs(parent - 1)[slot] if parent else self.gpus[self._at(handle)]["uuid"]
        text.value = uuid.encode()

    def _nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> None:
        text.value = self.gpus[self._at(handle)]["name"].encode()

    def _nvmlDeviceGetPciInfo(self, handle: Any, out: Any) -> None:
        out._obj.busId = self.gpus[self._at(handle)]["pci"]["bus_id"].encode()
        out._obj.pciDeviceId = self._of(handle, "PCI_ID")

    def _nvmlDeviceGetPlatformInfo(self, handle: Any, out: Any) -> None:
        slot, tray = self._of(handle, "SLOT"), self._of(handle, "TRAY")
        if out._obj.version >> 24 != 2:
            raise Refusal(OLD)
        out._obj.chassisSerialNumber = self.gpus[self._at(handle)]["platform"]["serial"].encode()
        out._obj.slotNumber, out._obj.trayIndex = bytes([slot]), bytes([tray])

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        first, second = divmod(self._of(handle, "CC"), 10)
        put(major, first)
        put(minor, second)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> None:
        memory = out._obj
        total, reserved, used = (self._of(handle, name) for name in ("TOTAL", "RESERVED", "USED"))
        memory.total = total
        if hasattr(memory, "reserved"):
            memory.reserved, memory.used = reserved, used
        else:
            memory.used = used + reserved
        memory.free = total - used - reserved

    def _nvmlDeviceGetBAR1MemoryInfo(self, handle: Any, out: Any) -> None:
        out._obj.bar1Total = self._of(handle, "BAR1")

    def _nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> None:
        put(now, self._of(handle, "MIG"))
        put(pending, self._of(handle, "MIG_PENDING"))

    def _nvmlDeviceGetEccMode(self, handle: Any, now: Any, pending: Any) -> None:
        put(now, self._of(handle, "ECC"))
        put(pending, self._of(handle, "ECC_PENDING"))

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> None:
        self._of(handle, "ECC")
        name = ("AGG" if counter.value else "VOL") + ("_UNC" if kind.value else "_COR")
        put(out, self._of(handle, name))

    def _nvmlDeviceGetMemoryErrorCounter(self, handle: Any, kind: Any, counter: Any, place: Any, out: Any) -> None:
        group = "UNC" if kind.value else "COR"
        put(out, self._of(handle, f"{group}_{'DRAM' if place.value == 2 else 'SRAM'}"))

    def _nvmlDeviceGetRemappedRows(self, handle: Any, *out: Any) -> None:
        for each, fact in zip(out, ("REMAP_COR", "REMAP_UNC", "REMAP_PENDING", "REMAP_FAILURE"), strict=True):
            put(each, self._of(handle, fact))

    def _nvmlDeviceGetRowRemapperHistogram(self, handle: Any, out: Any) -> None:
        self._of(handle, "REMAP_COR")
        for name, value in zip(
            ("max", "high", "partial", "low", "none"), library._histogram(self.gpus[self._at(handle)]), strict=True
        ):
            setattr(out._obj, name, value)

    def _nvmlDeviceGetRetiredPages(self, handle: Any, cause: Any, count: Any, pages: Any) -> None:
        found = self._of(handle, "RETIRED_DBE" if cause.value else "RETIRED_SBE")
        put(count, found)
        if pages is None and found:
            raise Refusal(INSUFFICIENT)

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> None:
        out._obj.marginTemperature = self._of(handle, "TLIMIT")

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> None:
        out._obj.gpu = self._of(handle, "UTILIZATION")

    def _nvmlDeviceGetPcieReplayCounter(self, handle: Any, out: Any) -> None:
        looks = self._look(("replay", self._at(handle)))
        put(out, self._of(handle, "REPLAYS") + looks * self._of(handle, "REPLAY_GROWTH"))

    def _nvmlDeviceGetViolationStatus(self, handle: Any, policy: Any, out: Any) -> None:
        out._obj.referenceTime, out._obj.violationTime = 1, self._of(handle, "THERMAL_NS")

    def _nvmlDeviceGetGspFirmwareMode(self, handle: Any, now: Any, usual: Any) -> None:
        put(now, self._of(handle, "GSP"))
        put(usual, 1)

    def _nvmlDeviceGetGspFirmwareVersion(self, handle: Any, text: Any) -> None:
        self._of(handle, "GSP")
        text.value = b"580.105.08"

    def _nvmlDeviceGetSramEccErrorStatus(self, handle: Any, out: Any) -> None:
        out._obj.bThresholdExceeded = self._of(handle, "SRAM")

    def _nvmlDeviceGetCpuAffinity(self, handle: Any, words: Any, out: Any) -> None:
        fill(out, words, self.gpus[self._at(handle)].get("cpu_affinity") or "")

    def _nvmlDeviceGetMemoryAffinity(self, handle: Any, words: Any, out: Any, scope: Any) -> None:
        numa = self.gpus[self._at(handle)].get("numa", -1)
        fill(out, words, str(numa) if numa >= 0 else "")

    def _nvmlDeviceValidateInforom(self, handle: Any) -> None:
        code = self._of(handle, "INFOROM")
        if code:
            raise Refusal(code)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> None:
        put(out, self._of(handle, "THROTTLE"))

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: Any, count: Any, out: Any) -> None:
        self._of(handle, "PROCESSES")
        listed = self.gpus[self._at(handle)].get("processes", [])
        have, count._obj.value = count._obj.value, len(listed)
        if have < len(listed):
            raise Refusal(INSUFFICIENT)
        for at, each in enumerate(listed):
            out[at].pid, out[at].usedGpuMemory = each["pid"], each["used"]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any, count: Any, out: Any) -> None:
        have, count._obj.value = count._obj.value, self._of(handle, "GRAPHICS")
        if have < count._obj.value:
            raise Refusal(INSUFFICIENT)

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> None:
        self._of(handle, "MIG")
        put(out, 7)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, out: Any) -> None:
        index = self._at(handle)
        if not dict(enumerate(self._migs(index))).get(slot.value):
            raise Refusal(NOT_FOUND)
        ctypes.c_void_p.from_buffer(out._obj).value = MIG * (index + 1) + slot.value

    def _migs(self, index: int) -> list[Any]:
        mig = self.gpus[index].get("mig")
        return list(mig.get("instances", [])) if isinstance(mig, dict) else []

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, out: Any) -> None:
        put(out, 7)

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, out: Any) -> None:
        put(out, 0)

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, fields: Any) -> None:
        index = self._at(handle)
        for at in range(count.value):
            field = fields._obj[at]
            try:
                value = self._field(index, field.fieldId, field.scopeId)
            except Refusal as refusal:
                field.nvmlReturn = refusal.code
                continue
            field.nvmlReturn, field.valueType = 0, 5 if value < 0 else 1
            field.value.ullVal = value & (1 << 64) - 1

    def _field(self, index: int, number: int, scope: int) -> int:
        nvlink = self.gpus[index].get("nvlink") or {}
        if number == 91:
            return int(nvlink.get("links", 0))
        if number == 164:
            return int(nvlink.get("speed_mbps", 0)) if self._active(index)[scope : scope + 1] == [1] else 0
        if number not in FIELDS:
            raise Refusal(NOT_SUPPORTED)
        return self._number(self.values[index][FIELDS[number]])

    def _active(self, index: int) -> list[int]:
        nvlink = self.gpus[index].get("nvlink") or {}
        links = nvlink.get("links", 0)
        down = range(links) if nvlink.get("all_down") else nvlink.get("down", [])
        return [int(at not in down) for at in range(links)]

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, out: Any) -> None:
        active = self._active(self._at(handle))
        number = int(getattr(link, "value", link))
        if number >= len(active):
            raise Refusal(INVALID if active else NOT_SUPPORTED)
        put(out, active[number])

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, link: Any, out: Any) -> None:
        put(out, self.gpus[self._at(handle)]["nvlink"].get("version_enum", 0))

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, out: Any) -> None:
        index = self._at(handle)
        put(out, 255 if self._end(index, link)[0] == "F" else 2 if self.values[index]["SWITCHED"] else 0)

    def _nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: Any, out: Any) -> None:
        out._obj.busId = self._end(self._at(handle), link).encode()

    def _end(self, index: int, link: Any) -> str:
        return str(library.ends(self.gpus[index])[int(getattr(link, "value", link))])

    def _nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: Any, counter: Any, out: Any) -> None:
        index, number = self._at(handle), int(getattr(link, "value", link))
        growth = (self.gpus[index].get("nvlink") or {}).get("error_growth", {}).get(str(number), 0)
        put(out, growth * self._look((index, number, int(getattr(counter, "value", counter)))))

    def _look(self, what: Any) -> int:
        self.looks[what] = self.looks.get(what, -1) + 1
        return self.looks[what]

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> None:
        newest = self.node["driver"].get("fabric_version", 3)
        if newest < 2:
            raise Refusal(13)
        self._register(handle, out)
        if not 2 <= out._obj.version >> 24 <= newest:
            raise Refusal(OLD)
        out._obj.healthMask = self._of(handle, "FABRIC_MASK")

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, out: Any) -> None:
        self._register(handle, out)

    def _register(self, handle: Any, out: Any) -> None:
        fabric = out._obj
        fabric.state = self._of(handle, "FABRIC")
        fabric.status, fabric.cliqueId = self._of(handle, "FABRIC_STATUS"), self._of(handle, "CLIQUE")
        kind = type(fabric.clusterUuid)
        fabric.clusterUuid = kind(*[0] * 15, self._of(handle, "CLUSTER"))

    def _nvmlDeviceGetTopologyCommonAncestor(self, a: Any, b: Any, out: Any) -> None:
        put(out, library._level(self.gpus[self._at(a)], self.gpus[self._at(b)]))

    def _nvmlDeviceGetP2PStatus(self, a: Any, b: Any, kind: Any, out: Any) -> None:
        put(out, library._p2p(self.node, self._at(a), self._at(b))[int(getattr(kind, "value", kind))])


def put(out: Any, value: int) -> None:
    """Write through a pointer that ctypes made."""
    out._obj.value = value


def fill(out: Any, words: Any, ranges: str) -> None:
    """A mask of CPUs or nodes."""
    for at, word in enumerate(library.mask_words(ranges)[: int(getattr(words, "value", words))]):
        out._obj[at] = word
