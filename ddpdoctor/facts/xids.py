"""Xids and SXids: the codes of NVIDIA's driver for GPU and NVSwitch errors in the kernel log.

The table has, per code, its meaning, the action that NVIDIA's Xid catalog recommends, and the kind of fault;
a cause names its kind in `xids=`.

Source: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of November 2026: the immediate action of each Xid that
is in use on A100, H100, B100 or GB200. Where the catalogue leaves it open (167 to 169), a fault of the device, the firmware or
its memory is cleared by a reset. Xids 56 to 58, 65, 73 and 81 are those of older GPUs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum

from ddpdoctor.facts.nvlink5_xids import NvlinkAction, NvlinkFault, nvlink_fault
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "BY_KIND",
    "Meaning",
    "Xid",
    "XidKind",
    "action",
    "meaning",
    "needs_no_action",
    "waits_for_154",
    "xid_in",
]


@dataclass(frozen=True, slots=True)
class Xid:
    """One line of the kernel log about a GPU (`NVRM: Xid`) or an NVSwitch (`SXid`).

    `bus_id` has no function: `0000:3b:00`. `text` is the rest of the line. `age_seconds` is relative to the collection, or to
    the last line of a log file; None if the lines have no times. `restarts` counts the boots
    after it. `source`, `line` and `host` are those of a log file.
    """

    code: int
    bus_id: str
    age_seconds: float | None = None
    text: str = ""
    is_switch: bool = False
    restarts: int = 0
    source: int | None = None
    line: int | None = None
    host: str | None = None

    @property
    def is_fatal(self) -> bool:
        """A fatal NVSwitch error. Only its first line has the word; the next lines are register dumps."""
        return self.is_switch and self.text.startswith("Fatal")

    @property
    def is_harmless(self) -> bool:
        return self.is_switch and self.text.lower().startswith("non-fatal")

    @property
    def program(self) -> str:
        """`python3, pid 2121`, "" if the line names no process."""
        match = re.search(r"pid='?(\d+)'?, name='?([^,' ]+)", self.text)
        return f"{match[2]}, pid {match[1]}" if match and match[2] != "<unknown>" else ""


class XidKind(Enum):
    """The kind of fault that an Xid reports: each member belongs to one cause, which names it in `xids=`."""

    GPU_LOST = "gpu-lost"
    GPU_RECOVERY_ACTION_PENDING = "gpu-recovery-action-pending"
    ECC_UNCORRECTED = "ecc-uncorrected"
    ECC_CORRECTED_RATE_HIGH = "ecc-corrected-rate-high"
    ROW_REMAP_FAILED = "row-remap-failed"
    ROW_REMAP_PENDING = "row-remap-pending"
    RETIRED_PAGES_LIMIT = "retired-pages-limit"
    INFOROM_CORRUPTED = "inforom-corrupted"
    CONFIDENTIAL_COMPUTING_ON = "confidential-computing-on"
    GSP_FIRMWARE_FAULT = "gsp-firmware-fault"
    AUXILIARY_POWER_MISSING = "auxiliary-power-missing"
    GPU_ENGINE_FAULT = "gpu-engine-fault"
    CONTAINED_MEMORY_ERROR = "contained-memory-error"
    UNCONTAINED_MEMORY_ERROR = "uncontained-memory-error"
    APPLICATION_FAULT_XID = "application-fault-xid"
    PREEMPTIVE_CLEANUP_XID = "preemptive-cleanup-xid"
    OTHER_XID = "other-xid"
    NVLINK_FAULT = "nvlink-fault"
    REMOTE_NVLINK_FAULT_XID = "remote-nvlink-fault-xid"
    C2C_CORRECTED_ERROR = "c2c-corrected-error"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one Xid, the recommended action, and the kind of fault."""

    kind: XidKind
    words: str
    action: str


_RESET = "reset the GPU"
_RESTART = "restart the application"
_NVLINK = "reset the GPUs of the NVLink domain; reseat or replace if it persists"
_SUPPORT = "contact support"

NVLINK5 = range(144, 151)
_OF_NVLINK = {
    NvlinkAction.RESET: "reset the GPU",
    NvlinkAction.IGNORE: "none",
    NvlinkAction.WITH_154: "the one that Xid 154 names; without it restart the application",
    NvlinkAction.UNKNOWN: "the one that Xid 154 names; this combination is not in NVIDIA's table",
}
"""NVIDIA's action as a phrase."""

_TABLE: tuple[tuple[XidKind, str, dict[int, str]], ...] = (
    (
        XidKind.APPLICATION_FAULT_XID,
        _RESTART,
        {
            8: "the GPU stopped processing a channel",
            11: "a corrupted command stream",
            13: "a GPU kernel exception, such as an out-of-range address",
            31: "a GPU page fault: an illegal address",
            25: "an illegal command stream",
            32: "a corrupted command stream",
            39: "a copy engine fault",
            40: "a copy engine fault",
            41: "a copy engine fault",
            43: "the program's channel was stopped",
            69: "a graphics engine class error",
            70: "a copy engine fault",
            71: "a copy engine fault",
            72: "a copy engine fault",
            **dict.fromkeys((75, 76, 77, 85, *range(126, 136)), "a copy engine fault"),
            80: "corrupted data was sent to the GPU",
        },
    ),
    (
        XidKind.PREEMPTIVE_CLEANUP_XID,
        "check the messages before it",
        {45: "the driver cleaned up after an earlier fault or a killed process"},
    ),
    (
        XidKind.ECC_UNCORRECTED,
        _RESET,
        {
            48: "an uncorrectable ECC error",
            171: "an uncorrectable error of its DRAM, a detail of Xid 48",
            172: "an uncorrectable error of its SRAM, a detail of Xid 48",
        },
    ),
    (XidKind.AUXILIARY_POWER_MISSING, "check the power cables", {54: "auxiliary power is not connected"}),
    (
        XidKind.GPU_ENGINE_FAULT,
        _RESET,
        {
            46: "it stopped processing",
            62: "its microcontroller halted",
            109: "a context switch timed out",
            110: "a security fault",
            136: "link training failed",
            140: "an unrecovered ECC error",
            143: "it could not be initialized",
            155: "an NVLink software-defined error",
            156: "a resource was retired",
            158: "a fatal timeout",
            167: "a fatal PCIe timeout",
            168: "errors in its protected memory; less of it can be used",
            169: "its security microcontroller halted",
        },
    ),
    (XidKind.ROW_REMAP_PENDING, "none", {63: "a memory row was remapped or a page was retired"}),
    (
        XidKind.ROW_REMAP_FAILED,
        "reset the GPU; replace the card if it persists",
        {64: "remapping a memory row or retiring a page failed"},
    ),
    (XidKind.NVLINK_FAULT, _NVLINK, {74: "an NVLink error", **dict.fromkeys(range(144, 151), "an NVLink 5 error")}),
    (XidKind.GPU_LOST, "restart the machine", {79: "it has fallen off the bus"}),
    (XidKind.ECC_CORRECTED_RATE_HIGH, "none", {92: "a high rate of corrected memory errors"}),
    (XidKind.INFOROM_CORRUPTED, "none", {93: "too many InfoROM writes"}),
    (XidKind.CONTAINED_MEMORY_ERROR, _RESTART, {94: "a contained memory error"}),
    (XidKind.UNCONTAINED_MEMORY_ERROR, _RESET, {95: "an uncontained memory error"}),
    (XidKind.GSP_FIRMWARE_FAULT, _RESET, {119: "its GSP firmware timed out", 120: "its GSP firmware failed"}),
    (XidKind.C2C_CORRECTED_ERROR, "none", {121: "a corrected error of the chip-to-chip link"}),
    (XidKind.REMOTE_NVLINK_FAULT_XID, "check the peer's Xid", {137: "an error received from an NVLink peer"}),
    (
        XidKind.CONFIDENTIAL_COMPUTING_ON,
        "restart the virtual machine",
        {151: "confidential computing key rotation failed"},
    ),
    (
        XidKind.GPU_RECOVERY_ACTION_PENDING,
        "take the action that the line names",
        {154: "the driver's recovery action changed"},
    ),
    (
        XidKind.RETIRED_PAGES_LIMIT,
        _SUPPORT,
        {
            157: "retiring a resource failed",
            159: "a chip-to-chip interface error",
            160: "a memory channel was retired",
            161: "retiring a memory channel failed",
        },
    ),
    (
        XidKind.OTHER_XID,
        "see NVIDIA's Xid catalog",
        {
            37: "a driver firmware error",
            38: "a driver firmware error",
            44: "a graphics fault during a context switch",
            60: "a video processor fault",
            66: "an illegal access by the driver",
            67: "an illegal access by the driver",
            **dict.fromkeys((82, 99, 100, 101, 102, 103, 104, 105), "a JPEG engine fault"),
            **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "a video decoder fault"),
            **dict.fromkeys((86, 139), "an optical flow engine fault"),
            141: "a CUDA fast path error",
            142: "a video encoder fault",
            **dict.fromkeys((162, 163, 164, 165), "a report of its power smoothing"),
            166: "traffic before encryption was set up (confidential computing)",
            170: "an NVLink interrupt in confidential computing mode",
            56: "a display engine fault",
            57: "a memory interface fault",
            58: "the memory interface is unstable",
            65: "a video engine fault",
            68: "a video decoder fault",
            73: "a video encoder fault",
            81: "a VGA fault",
        },
    ),
)

XIDS: dict[int, Meaning] = {
    code: Meaning(kind, words, action) for kind, action, codes in _TABLE for code, words in codes.items()
}
BY_KIND: dict[XidKind, frozenset[int]] = {
    kind: frozenset(code for code, known in XIDS.items() if known.kind is kind) for kind, _, _ in _TABLE
}
"""The Xids of each kind."""

_UNLISTED = Meaning(XidKind.OTHER_XID, "an unknown fault", "see NVIDIA's Xid catalog")

_LINE = re.compile(
    r"(?:(?P<switch>nvidia-nvswitch\d+: S)|NVRM: )Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)(?: [^()\n]{0,100})?\): (?P<code>\d+)"
    r"(?P<text>.*)"
)
_EARLIER = re.compile(r"caused by previous Xid (\d{1,4})\b")
MOST_TEXT = 200
HOUR = 3600


def meaning(xid: Xid) -> Meaning:
    """The meaning of a GPU's Xid; for a consequence of an earlier Xid (`caused by previous Xid`), that of the earlier one."""
    earlier = _EARLIER.search(xid.text)
    fault = _nvlink(xid)
    if earlier is None and fault is not None:
        return Meaning(XidKind.NVLINK_FAULT, *_words(fault))
    if earlier is None:
        return XIDS.get(xid.code, _UNLISTED)
    known = XIDS.get(int(earlier[1]), _UNLISTED)
    return replace(known, words=f"the driver cleaned up after Xid {earlier[1]}, {known.words}")


def _nvlink(xid: Xid) -> NvlinkFault | None:
    """The fault of an NVLink 5 Xid, by NVIDIA's table."""
    return nvlink_fault(xid.code, xid.text) if xid.code in NVLINK5 and not xid.is_switch else None


def _words(fault: NvlinkFault) -> tuple[str, str]:
    """What an NVLink 5 fault is, and NVIDIA's action."""
    severity = "fatal" if fault.is_fatal else "nonfatal"
    link = "" if fault.link is None or fault.link < 0 else f" on link {fault.link}"
    return f"a {severity} NVLink error in {fault.unit}{link}", _OF_NVLINK[fault.action]


def needs_no_action(xid: Xid) -> bool:
    """Whether NVIDIA's table says to ignore this NVLink 5 Xid."""
    fault = _nvlink(xid)
    return fault is not None and fault.action is NvlinkAction.IGNORE


def waits_for_154(xid: Xid) -> bool:
    """Whether the action after this Xid is the one that an Xid 154 names, or depends on registers that are not in the table."""
    fault = _nvlink(xid)
    return fault is not None and fault.action in (NvlinkAction.WITH_154, NvlinkAction.UNKNOWN) and not fault.is_fatal


def action(xid: Xid) -> str:
    """The action after an Xid or SXid, as a short phrase."""
    if xid.is_switch:
        return "check the fabric manager's log and restart the machine" if xid.is_fatal else "none"
    changed = re.search(r"to 0x[0-9a-fA-F]+ \(([^()]+)\)", xid.text) if xid.code == 154 else None
    return changed[1] if changed is not None else meaning(xid).action


def age(seconds: float) -> str:
    """An age as text: `40 s`, `12 min`, `5 h`, `3 days`."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 2 * HOUR), ("h", HOUR, 48 * HOUR)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / (24 * HOUR):.0f} days"


def xid_in(line: str) -> Xid | None:
    """The Xid or SXid in a line of the kernel log, None for every other line."""
    match = _LINE.search(line)
    if match is None:
        return None
    return Xid(
        code=int(match["code"][:9]),
        bus_id=match["bus"].lower().partition(".")[0][-10:],
        text=match["text"].lstrip(", ").partition("\n")[0][:MOST_TEXT],
        is_switch=match["switch"] is not None,
    )
