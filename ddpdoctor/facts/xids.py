"""Xids and SXids: the numbers under which NVIDIA's driver writes faults of GPUs and NVSwitches into the kernel's log.

The table says of each number what it means, what NVIDIA's catalogue of Xids recommends, and which kind of fault it shows;
a cause names its kind in `xids=`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["BY_KIND", "Meaning", "Xid", "XidKind", "action", "meaning", "xid_in"]


@dataclass(frozen=True, slots=True)
class Xid:
    """One line of the kernel's log about a GPU (`NVRM: Xid`) or an NVSwitch (`SXid`).

    `bus_id` has no function: `0000:3b:00`. `text` is what follows the code. `age_seconds` counts back from when we looked, or
    from the last line of a log file; None where the lines have no times. `restarts` counts how often the machine was started
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
        """Of an NVSwitch's fault: the lines after the first hold registers, and neither word."""
        return self.is_switch and self.text.startswith("Fatal")

    @property
    def is_harmless(self) -> bool:
        return self.is_switch and self.text.lower().startswith("non-fatal")

    @property
    def program(self) -> str:
        """`python3, pid 2121`, "" where the line names none."""
        found = re.search(r"pid='?(\d+)'?, name='?([^,' ]+)", self.text)
        return f"{found[2]}, pid {found[1]}" if found and found[2] != "<unknown>" else ""


class XidKind(Enum):
    """What an Xid shows: each member is the subject of one cause, which names it in `xids=`."""

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
    """What one Xid says, what to do after it, and what kind of fault it shows."""

    kind: XidKind
    words: str
    action: str


_RESET = "reset the GPU"
_RESTART = "restart the application"
_NVLINK = "reset the GPUs of the NVLink domain; reseat or replace if it stays"
_SUPPORT = "contact support"

_TABLE: tuple[tuple[XidKind, str, dict[int, str]], ...] = (
    (
        XidKind.APPLICATION_FAULT_XID,
        _RESTART,
        {
            13: "an exception in a kernel, such as an address out of range",
            31: "a page fault of the GPU: an illegal address",
            32: "a corrupted command stream",
            39: "a fault of the copy engine",
            40: "a fault of the copy engine",
            41: "a fault of the copy engine",
            43: "the program's channel was stopped",
            69: "an error of the graphics engine's class",
            70: "a fault of the copy engine",
            71: "a fault of the copy engine",
            72: "a fault of the copy engine",
            80: "corrupted data was sent to the GPU",
        },
    ),
    (
        XidKind.PREEMPTIVE_CLEANUP_XID,
        "look at what came before it",
        {45: "the driver cleaned up after an earlier fault or a killed process"},
    ),
    (XidKind.ECC_UNCORRECTED, _RESET, {48: "a memory error that ECC could not correct"}),
    (XidKind.AUXILIARY_POWER_MISSING, "check the power cables", {54: "the auxiliary power is missing"}),
    (
        XidKind.GPU_ENGINE_FAULT,
        _RESET,
        {
            62: "its micro-controller halted",
            109: "a context switch timed out",
            110: "a security fault",
            136: "the training of a link failed",
            140: "an ECC error without recovery",
            143: "it could not be initialised",
            155: "an error that the NVLink software defines",
            156: "a resource was taken out of use",
            158: "a fatal time-out",
        },
    ),
    (XidKind.ROW_REMAP_PENDING, "none by itself", {63: "a memory row was remapped, or a page retired"}),
    (
        XidKind.ROW_REMAP_FAILED,
        "reset the GPU; replace the card if it stays",
        {64: "a memory row could not be remapped, or a page not retired"},
    ),
    (XidKind.NVLINK_FAULT, _NVLINK, {74: "an NVLink error", **dict.fromkeys(range(144, 151), "an NVLink 5 error")}),
    (XidKind.GPU_LOST, "restart the machine", {79: "it has fallen off the bus"}),
    (XidKind.ECC_CORRECTED_RATE_HIGH, "none", {92: "many memory errors were corrected"}),
    (XidKind.INFOROM_CORRUPTED, "none", {93: "its InfoROM was written too often"}),
    (XidKind.CONTAINED_MEMORY_ERROR, _RESTART, {94: "a memory error that was contained"}),
    (XidKind.UNCONTAINED_MEMORY_ERROR, _RESET, {95: "a memory error that was not contained"}),
    (XidKind.GSP_FIRMWARE_FAULT, _RESET, {119: "its GSP firmware timed out", 120: "its GSP firmware failed"}),
    (XidKind.C2C_CORRECTED_ERROR, "none", {121: "the chip-to-chip link corrected an error"}),
    (XidKind.REMOTE_NVLINK_FAULT_XID, "look at the peer's Xid", {137: "a fault that came from a peer over NVLink"}),
    (
        XidKind.CONFIDENTIAL_COMPUTING_ON,
        "restart the virtual machine",
        {151: "the keys of confidential computing could not be renewed"},
    ),
    (XidKind.GPU_RECOVERY_ACTION_PENDING, "do what the line says", {154: "the driver's recovery action changed"}),
    (
        XidKind.RETIRED_PAGES_LIMIT,
        _SUPPORT,
        {
            157: "a resource could not be taken out of use",
            159: "an error of the chip-to-chip interface",
            160: "a memory channel was taken out of use",
            161: "a memory channel could not be taken out of use",
        },
    ),
    (
        XidKind.OTHER_XID,
        "see NVIDIA's catalogue of Xids",
        {
            56: "a fault of the display engine",
            57: "a fault of the memory interface",
            58: "the memory interface is unstable",
            65: "a fault of the video engine",
            68: "a fault of the video decoder",
            73: "a fault of the video encoder",
            81: "a fault of the VGA part",
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

_UNLISTED = Meaning(XidKind.OTHER_XID, "a fault that ddpdoctor does not know", "see NVIDIA's catalogue of Xids")

_LINE = re.compile(
    r"(?:(?P<switch>nvidia-nvswitch\d+: S)|NVRM: )Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)(?: [^)\n]*)?\): (?P<code>\d+)"
    r"(?P<text>.*)"
)
_EARLIER = re.compile(r"caused by previous Xid (\d{1,4})\b")
MOST_TEXT = 200
HOUR = 3600


def meaning(xid: Xid) -> Meaning:
    """What an Xid of a GPU says; one that the driver calls the consequence of another says what that one does."""
    earlier = _EARLIER.search(xid.text)
    if earlier is None:
        return XIDS.get(xid.code, _UNLISTED)
    known = XIDS.get(int(earlier[1]), _UNLISTED)
    return replace(known, words=f"the driver cleaned up after Xid {earlier[1]}, {known.words}")


def action(xid: Xid) -> str:
    """What to do after an Xid or SXid, in a few words."""
    if xid.is_switch:
        return "read the fabric manager's log and restart the machine" if xid.is_fatal else "none"
    changed = re.search(r"to 0x[0-9a-fA-F]+ \(([^)]+)\)", xid.text) if xid.code == 154 else None
    return changed[1] if changed is not None else meaning(xid).action


def age(seconds: float) -> str:
    """An age for people: `40 s`, `12 min`, `5 h`, `3 days`."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 2 * HOUR), ("h", HOUR, 48 * HOUR)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / (24 * HOUR):.0f} days"


def xid_in(line: str) -> Xid | None:
    """The Xid or SXid in a line of the kernel's log, None for every other line."""
    found = _LINE.search(line)
    if found is None:
        return None
    return Xid(
        code=int(found["code"][:9]),
        bus_id=found["bus"].lower().partition(".")[0][-10:],
        text=found["text"].lstrip(", ").partition("\n")[0][:MOST_TEXT],
        is_switch=found["switch"] is not None,
    )
