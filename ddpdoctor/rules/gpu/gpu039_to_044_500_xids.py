"""GPU039 to GPU044, GPU500: faults in the kernel log; and how every cause reports its Xids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import BY_KIND, XIDS, Xid, XidKind, action, age, meaning, needs_no_action, waits_for_154
from ddpdoctor.findings import Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.rules import cause

__all__ = ["device_xid_findings", "logged", "of_switches", "recent_xids"]

FRESH_SECONDS = 7200.0
"""Azure's node check fails a node for two hours after such an Xid; an older one is reported as a warning."""
REPEATED = 3
"""This many program faults in a day on one GPU are reported."""
MOST_SHOWN = 3
NOTES = frozenset((63, 92, 93))
"""Xids that require no action themselves: other facts show their effects."""
CLEARED = "(None)"
NO_ACTION = (
    "Do nothing for a single line: NVIDIA's table says to ignore it. If it repeats on one link, check the cables of that link "
    "(`nvidia-smi nvlink -e`)."
)

Place = Callable[[Xid], tuple[str, Where]]


def device_xid_findings(xids: Iterable[Xid], place: Place, *, of_a_log: bool = False) -> Iterator[Finding]:
    """One finding per GPU or switch, about its newest line; all Xids of one finding show the same cause.

    `place` names the GPU or switch of one line and its place. `of_a_log`: ages count from the end of the log and do not lower the
    severity; a reboot of the machine does.
    """
    groups: dict[tuple[str | None, str], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.host, xid.bus_id), []).append(xid)
    for group in groups.values():
        last = next((xid for xid in reversed(group) if not needs_no_action(xid)), group[-1])
        if last.code == 154 and last.text.rstrip().endswith(CLEARED):
            continue  # the recovery action was carried out
        device, where = place(last)
        word = "SXid" if last.is_switch else "Xid"
        fault = last.text[:80] if last.is_switch else meaning(last).words
        sentence = f"{device} {fault[3:]}" if fault.startswith("it ") else f"{device}: {fault}"
        program = f" in {last.program}" if last.program else ""
        numbers = sorted({x.code for x in group} - {last.code})
        others = f"; also {word} {', '.join(map(str, numbers[:MOST_SHOWN]))}" if numbers else ""
        same = sum(x.code == last.code for x in group)
        times = f", {same} times" if same > 1 else ""
        yield Finding(
            f"{sentence} ({word} {last.code}{program}{_when(last, of_a_log)}{times}{others}); "
            f"NVIDIA's action: {action(last)}",
            tuple(
                Evidence(_path(x, where), f"{word} {x.code}: {x.text}"[:160], "no such line")
                for x in group[-MOST_SHOWN:][::-1]
            ),
            where=where,
            severity=_severity(last, of_a_log),
            fix=NO_ACTION if needs_no_action(last) else "",
        )


def _path(xid: Xid, where: Where) -> str:
    return "gpu.xids" if xid.line is None else f"{where.file}:{xid.line}"


def _severity(xid: Xid, of_a_log: bool) -> Severity | None:
    if not xid.is_switch and (xid.code in NOTES or xid.code not in XIDS or needs_no_action(xid)):
        return Severity.NOTE
    if waits_for_154(xid):
        return Severity.WARNING
    is_old = xid.restarts or (not of_a_log and (xid.age_seconds or 0.0) > FRESH_SECONDS)
    softens = xid.is_fatal or meaning(xid).kind in SOFTEN
    return Severity.WARNING if is_old and softens else None


SOFTEN = frozenset(
    (
        XidKind.GPU_LOST,
        XidKind.GPU_RECOVERY_ACTION_PENDING,
        XidKind.ECC_UNCORRECTED,
        XidKind.ROW_REMAP_FAILED,
        XidKind.AUXILIARY_POWER_MISSING,
        XidKind.GPU_ENGINE_FAULT,
        XidKind.UNCONTAINED_MEMORY_ERROR,
        XidKind.NVLINK_FAULT,
    )
)
"""Errors that may already be cleared if the line is old."""


def _when(xid: Xid, of_a_log: bool) -> str:
    if xid.restarts:
        return f", {xid.restarts} reboots ago" if xid.restarts > 1 else ", before the last reboot"
    if xid.age_seconds is None:
        return ""
    if of_a_log:
        return f", {age(xid.age_seconds)} before the log ends" if xid.age_seconds >= 1 else ", at the end of the log"
    return f", {age(xid.age_seconds)} ago"


def recent_xids(gpu: Gpu, kind: XidKind, *, among: set[str] | None = None) -> Iterator[Finding]:
    """The Xids of the last day that show a cause, on the GPUs at the bus ids `among`.

    Raises:
        CannotLook: the kernel log could not be read.
    """
    xids = [x for x in gpu.recent() if not x.is_switch and meaning(x).kind is kind]
    yield from device_xid_findings(
        (x for x in xids if among is None or x.bus_id in among), lambda xid: _place(gpu, xid)
    )


def _place(gpu: Gpu, xid: Xid) -> tuple[str, Where]:
    device = gpu.at(xid.bus_id)
    if device is None:
        return f"the GPU at {xid.bus_id}", Where()
    return f"GPU {device.index}", Where(gpu=device.index)


def logged(gpu: Gpu, kind: XidKind, *, unless: str = "") -> Iterator[Finding]:
    """The same for a rule that has other facts too: a kernel log that cannot be read does not stop it.

    `unless`: only for GPUs that NVML does not list, or whose value of this field it does not report; its value is newer.
    """
    try:
        places = {xid.bus_id for xid in gpu.recent()}
    except CannotLook:
        return
    reported = {
        place for place in places if (d := gpu.at(place)) is not None and (d.error or d.absent.get(unless) is None)
    }
    yield from recent_xids(gpu, kind, among=places - reported if unless else places)


def of_switches(gpu: Gpu) -> Iterator[Finding]:
    """The fatal faults of NVSwitches in the last day."""
    fatal = (x for x in gpu.recent() if x.is_fatal)
    yield from device_xid_findings(fatal, lambda xid: (f"the NVSwitch at {xid.bus_id}", Where()))


@cause(
    "GPU039",
    "auxiliary-power-missing",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 54\b", r"necessary power cables"),
    xids=XidKind.AUXILIARY_POWER_MISSING,
)
def auxiliary_power_missing(gpu: Gpu) -> Iterator[Finding]:
    """A GPU reports that its auxiliary power is missing.

    ## Why it matters
    The card starts without its power cable and fails as soon as it gets work.

    ## Fix
    Check the power cables of the card.

    ## Example
    In the kernel log:

        NVRM: GPU does not have the necessary power cables connected.
        NVRM: Xid (PCI:0000:3b:00): 54

    After the cable is connected and the node has been started, on that node:

        dmesg | grep -E "power cables|Xid"

    ## Source
    Xid 54; "GPU does not have the necessary power cables connected".
    """
    yield from recent_xids(gpu, XidKind.AUXILIARY_POWER_MISSING)


@cause(
    "GPU040",
    "gpu-engine-fault",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: (46|62|109|110|136|140|143|155|156|158|167|168|169)\b",),
    xids=XidKind.GPU_ENGINE_FAULT,
)
def gpu_engine_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported a fault that only a GPU reset clears.

    ## Why it matters
    Ranks on this GPU hang, or fail later at an unrelated line.

    ## Fix
    Reset the GPU on that node as root (`nvidia-smi --gpu-reset -i N`); if it happens again, take the node out of service.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 109, pid=2121, name=python3, Ch 00000018, errorString CTX SWITCH TIMEOUT

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2

    ## Source
    Xids 46, 62, 109, 110, 136, 140, 143, 155, 156, 158, 167 to 169 (NVIDIA's Xid catalog: reset GPU).
    """
    yield from recent_xids(gpu, XidKind.GPU_ENGINE_FAULT)


@cause(
    "GPU041",
    "contained-memory-error",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 94\b",),
    xids=XidKind.CONTAINED_MEMORY_ERROR,
)
def contained_memory_error(gpu: Gpu) -> Iterator[Finding]:
    """A contained GPU memory error ended the program that used the memory.

    ## Why it matters
    That program ends with `uncorrectable ECC error encountered`. Other processes on the GPU continue.

    ## Fix
    Start the job again, and reset the GPU soon (as root on that node: `nvidia-smi --gpu-reset -i N`).

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 94, pid=2121, name=python3, Contained: SM (0x1)

    Restart the job from its last checkpoint; later, on that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2

    ## Source
    Xid 94.
    """
    yield from recent_xids(gpu, XidKind.CONTAINED_MEMORY_ERROR)


@cause(
    "GPU042",
    "uncontained-memory-error",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 95\b",),
    xids=XidKind.UNCONTAINED_MEMORY_ERROR,
)
def uncontained_memory_error(gpu: Gpu) -> Iterator[Finding]:
    """An uncontained GPU memory error: the GPU needs a reset.

    ## Why it matters
    Every process on the GPU is affected, and later work may use corrupted values.

    ## Fix
    Reset the GPU on that node as root (`nvidia-smi --gpu-reset -i N`), then check its remapped rows
    (`nvidia-smi -i N -q -d ROW_REMAPPER`).

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 95, pid=2121, name=python3, Uncontained: LTC TAG (0x2,0x0)

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2
        nvidia-smi -i 2 -q -d ROW_REMAPPER

    ## Source
    Xid 95.
    """
    yield from recent_xids(gpu, XidKind.UNCONTAINED_MEMORY_ERROR)


@cause(
    "GPU043",
    "application-fault-xid",
    Severity.NOTE,
    speaker=Speaker.KERNEL,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]{0,80}: (8|11|13|25|31|32|39|40|41|43|69|7[0-2]|7[5-7]|80|85|12[6-9]|13[0-5])\b",),
    xids=XidKind.APPLICATION_FAULT_XID,
)
def application_fault_xid(gpu: Gpu) -> Iterator[Finding]:
    """The driver logged a GPU fault that a program caused.

    ## Why it matters
    The usual reason is an illegal memory access in a kernel of the program. A single such line does not point to the hardware; a
    GPU that repeats it with different programs may be broken.

    ## Fix
    Read the error of the program that ran on that GPU.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 31, pid=2121, name=python3, MMU Fault: ENGINE GRAPHICS

    To find the kernel, run the job again with synchronous launches:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node 8 train.py

    ## Source
    Xids 8, 11, 13, 25, 31, 32, 39 to 41, 43, 69 to 72, 75 to 77, 80, 85, 126 to 135.
    """
    faults = [x.bus_id for x in gpu.recent() if not x.is_switch and x.code in BY_KIND[XidKind.APPLICATION_FAULT_XID]]
    places = {bus_id for bus_id, times in Counter(faults).items() if times >= REPEATED}
    yield from recent_xids(gpu, XidKind.APPLICATION_FAULT_XID, among=places)


@cause(
    "GPU044",
    "preemptive-cleanup-xid",
    Severity.NOTE,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]{0,80}: 45\b",),
    xids=XidKind.PREEMPTIVE_CLEANUP_XID,
)
def preemptive_cleanup_xid() -> None:
    """The driver cleaned up after an earlier fault or a killed process.

    ## Why it matters
    `NVRM: Xid (PCI:…): 45` appears in the kernel log after the real fault, once for each channel of the process. It is not a
    fault itself.

    ## Fix
    Look at the Xid before it, or at what ended the process.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 13, pid=2121, name=python3, Graphics Exception
        NVRM: Xid (PCI:0000:3b:00): 45, pid=2121, name=python3, Ch 00000010

    Xid 13 is the one to look at:

        dmesg | grep -B 5 "Xid.*: 45"

    ## Source
    Xid 45.
    """


@cause(
    "GPU500",
    "other-xid",
    Severity.WARNING,
    xids=XidKind.OTHER_XID,
)
def other_xid(gpu: Gpu) -> Iterator[Finding]:
    """The driver logged an Xid that no other rule explains.

    ## Why it matters
    Some of these Xids concern engines that training does not use, others show that a card begins to fail. Azure takes a node out
    of service for Xids 56, 57, 58, 65, 68, 73 and 81.

    ## Fix
    Look up the number in NVIDIA's Xid catalog.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 58, Edc: 1

    On that node, to see whether it repeats:

        dmesg | grep "Xid"

    ## Source
    Every Xid in the kernel log that belongs to no other cause.
    """
    yield from recent_xids(gpu, XidKind.OTHER_XID)
