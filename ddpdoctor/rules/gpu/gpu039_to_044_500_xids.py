"""GPU039 to GPU044, GPU500: what the driver wrote into the kernel's log; and how every cause tells of its Xids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import BY_KIND, XIDS, Xid, XidKind, action, age, meaning
from ddpdoctor.findings import Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.rules import cause

__all__ = ["found", "logged", "of_switches", "told"]

FRESH_SECONDS = 7200.0
"""Azure's node check fails a node for two hours after such an Xid; older ones are softer here."""
REPEATED = 3
"""From so many faults of programs in a day the GPU is worth a look."""
MOST_SHOWN = 3
NOTES = frozenset((63, 92, 93))
"""Xids that ask for nothing by themselves: what they lead to is seen elsewhere."""
CLEARED = "(None)"

Place = Callable[[Xid], tuple[str, Where]]


def told(xids: Iterable[Xid], place: Place, *, of_a_log: bool = False) -> Iterator[Finding]:
    """One finding for each GPU or switch, about its newest line; those of one finding all show the same cause.

    `place` gives the words and the place for one line. `of_a_log`: ages count from the end of a log, and are no reason to be
    softer; a restart of the machine is.
    """
    groups: dict[tuple[str | None, str], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.host, xid.bus_id), []).append(xid)
    for group in groups.values():
        last = group[-1]
        if last.code == 154 and last.text.rstrip().endswith(CLEARED):
            continue  # what was asked for was done
        who, where = place(last)
        word = "SXid" if last.is_switch else "Xid"
        says = last.text[:80] if last.is_switch else meaning(last).words
        program = f" ({last.program})" if last.program else ""
        numbers = sorted({x.code for x in group} - {last.code})
        others = f"; also {word} {', '.join(map(str, numbers[:MOST_SHOWN]))}" if numbers else ""
        same = sum(x.code == last.code for x in group)
        times = f", {same} times" if same > 1 else ""
        yield Finding(
            f"{word} {last.code} on {who}{_when(last, of_a_log)}{times}: {says}{program}{others}; expected none; "
            f"NVIDIA's action: {action(last)}",
            tuple(
                Evidence(_path(x, where), f"{word} {x.code}: {x.text}"[:160], "no such line")
                for x in group[-MOST_SHOWN:][::-1]
            ),
            where=where,
            severity=_severity(last, of_a_log),
        )


def _path(xid: Xid, where: Where) -> str:
    return "gpu.xids" if xid.line is None else f"{where.file}:{xid.line}"


def _severity(xid: Xid, of_a_log: bool) -> Severity | None:
    if not xid.is_switch and (xid.code in NOTES or xid.code not in XIDS):
        return Severity.NOTE
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
"""Errors that an old line may no longer mean."""


def _when(xid: Xid, of_a_log: bool) -> str:
    if xid.restarts:
        return f" before the machine was started again{f' ({xid.restarts} times)' if xid.restarts > 1 else ''}"
    if xid.age_seconds is None:
        return ""
    told = age(xid.age_seconds)
    if of_a_log:
        return f" {told} before the log ends" if xid.age_seconds >= 1 else " at the log's end"
    return f" {told} ago"


def found(gpu: Gpu, kind: XidKind, *, among: set[str] | None = None) -> Iterator[Finding]:
    """The Xids of the last day that show a cause, on the GPUs at the bus ids `among`.

    Raises:
        CannotLook: the kernel's log could not be read.
    """
    xids = [x for x in gpu.recent() if not x.is_switch and meaning(x).kind is kind]
    yield from told((x for x in xids if among is None or x.bus_id in among), lambda xid: _place(gpu, xid))


def _place(gpu: Gpu, xid: Xid) -> tuple[str, Where]:
    device = gpu.at(xid.bus_id)
    if device is None:
        return f"the GPU at {xid.bus_id}", Where()
    return f"GPU {device.index}", Where(gpu=device.index)


def logged(gpu: Gpu, kind: XidKind, *, unless: str = "") -> Iterator[Finding]:
    """The same for a rule that also looks elsewhere: a log that cannot be read does not stop it.

    `unless`: only for GPUs of which NVML does not tell this field, or does not list at all; what it tells is newer.
    """
    try:
        places = {xid.bus_id for xid in gpu.recent()}
    except CannotLook:
        return
    told_of = {
        place for place in places if (d := gpu.at(place)) is not None and (d.error or d.absent.get(unless) is None)
    }
    yield from found(gpu, kind, among=places - told_of if unless else places)


def of_switches(gpu: Gpu) -> Iterator[Finding]:
    """The fatal faults of NVSwitches in the last day."""
    yield from told((x for x in gpu.recent() if x.is_fatal), lambda xid: (f"the NVSwitch at {xid.bus_id}", Where()))


@cause(
    "GPU039",
    "auxiliary-power-missing",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: 54\b", r"necessary power cables"),
    xids=XidKind.AUXILIARY_POWER_MISSING,
)
def auxiliary_power_missing(gpu: Gpu) -> Iterator[Finding]:
    """A GPU reports that its auxiliary power is missing.

    ## Why it matters
    The card comes up without its power cable and fails as soon as it has work.

    ## Fix
    Check the power cables of the card.

    ## Source
    Xid 54; "GPU does not have the necessary power cables connected".
    """
    yield from found(gpu, XidKind.AUXILIARY_POWER_MISSING)


@cause(
    "GPU040",
    "gpu-engine-fault",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: (62|109|110|136|140|143|155|156|158)\b",),
    xids=XidKind.GPU_ENGINE_FAULT,
)
def gpu_engine_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported a fault that only a reset of the GPU clears.

    ## Why it matters
    Ranks on this GPU hang, or get an error at an innocent line later.

    ## Fix
    Reset the GPU; take the node out when it happens again.

    ## Source
    Xids 62, 109, 110, 136, 140, 143, 155, 156, 158 (NVIDIA's catalogue: reset GPU).
    """
    yield from found(gpu, XidKind.GPU_ENGINE_FAULT)


@cause(
    "GPU041",
    "contained-memory-error",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]*: 94\b",),
    xids=XidKind.CONTAINED_MEMORY_ERROR,
)
def contained_memory_error(gpu: Gpu) -> Iterator[Finding]:
    """A memory error of a GPU was contained, and ended the program that used the memory.

    ## Why it matters
    That program ends with an uncorrectable ECC error; the other processes of the GPU go on.

    ## Fix
    Start the job again, and reset the GPU soon.

    ## Source
    Xid 94.
    """
    yield from found(gpu, XidKind.CONTAINED_MEMORY_ERROR)


@cause(
    "GPU042",
    "uncontained-memory-error",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: 95\b",),
    xids=XidKind.UNCONTAINED_MEMORY_ERROR,
)
def uncontained_memory_error(gpu: Gpu) -> Iterator[Finding]:
    """A memory error of a GPU was not contained: the GPU needs a reset.

    ## Why it matters
    Every process on the GPU is affected, and later work may use spoilt values.

    ## Fix
    Reset the GPU, then look at its remapped rows.

    ## Source
    Xid 95.
    """
    yield from found(gpu, XidKind.UNCONTAINED_MEMORY_ERROR)


@cause(
    "GPU043",
    "application-fault-xid",
    Severity.NOTE,
    speaker=Speaker.KERNEL,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]*: (13|31|32|39|40|41|43|69|70|71|72|80)\b",),
    xids=XidKind.APPLICATION_FAULT_XID,
)
def application_fault_xid(gpu: Gpu) -> Iterator[Finding]:
    """The driver logged faults that programs caused, again and again on one GPU.

    ## Why it matters
    Mostly an illegal access in a kernel. One such line says nothing of the hardware; one GPU that repeats it with unlike programs
    may be broken.

    ## Fix
    Look at the error of the program that ran there.

    ## Source
    Xids 13, 31, 32, 39 to 41, 43, 69 to 72, 80.
    """
    faults = [x.bus_id for x in gpu.recent() if not x.is_switch and x.code in BY_KIND[XidKind.APPLICATION_FAULT_XID]]
    places = {bus_id for bus_id, times in Counter(faults).items() if times >= REPEATED}
    yield from found(gpu, XidKind.APPLICATION_FAULT_XID, among=places)


@cause(
    "GPU044",
    "preemptive-cleanup-xid",
    Severity.NOTE,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]*: 45\b",),
    xids=XidKind.PREEMPTIVE_CLEANUP_XID,
)
def preemptive_cleanup_xid() -> None:
    """The driver cleaned up after an earlier fault, or after a process that was killed.

    ## Why it matters
    "NVRM: Xid (PCI:…): 45" stands in the kernel's log beside the real fault, once for each channel of the process. It is no
    fault of its own.

    ## Fix
    Look at the Xid before it, or at what ended the process.

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
    """The driver logged a fault that has no page of its own here.

    ## Why it matters
    Some of these Xids are about engines that training does not use, others tell of a card that begins to fail. Azure takes a
    node out for Xids 56, 57, 58, 65, 68, 73 and 81.

    ## Fix
    Look the number up in NVIDIA's catalogue of Xids.

    ## Source
    Every Xid in the kernel's log that no other cause names.
    """
    yield from found(gpu, XidKind.OTHER_XID)
