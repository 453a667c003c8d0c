"""GPU039 to GPU043: what the driver wrote into the kernel's log of this boot, in the last day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.facts.gpu import Gpu, Xid
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule

__all__ = ["ago", "found", "logged"]

FRESH_SECONDS = 7200.0
"""Azure's node check fails a node for two hours after such an Xid; older ones are softer here."""

REPEATED = 3
"""From so many faults of programs in a day the GPU is worth a look."""


def ago(seconds: float) -> str:
    """An age for people: `40 s ago`, `12 min ago`, `5 h ago`."""
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < FRESH_SECONDS else f"{seconds / 3600:.0f} h ago"


def found(
    gpu: Gpu, codes: tuple[int, ...], meaning: str, *, softens: bool = False, among: set[str] | None = None
) -> Iterator[Finding]:
    """One finding for each code and GPU, about the newest line.

    `softens`: a warning when it is older than two hours. `among`: only GPUs at these bus ids.

    Raises:
        CannotLook: the kernel's log could not be read.
    """
    newest: dict[tuple[int, str], Xid] = {}
    counts: dict[tuple[int, str], int] = {}
    for xid in gpu.recent(codes):
        if among is not None and xid.bus_id not in among:
            continue
        key = (xid.code, xid.bus_id)
        counts[key] = counts.get(key, 0) + 1
        if key not in newest or xid.age_seconds < newest[key].age_seconds:
            newest[key] = xid
    for key, xid in newest.items():
        device = gpu.at(xid.bus_id)
        who = f"GPU {device.index}" if device is not None else f"the GPU at {xid.bus_id}"
        times = f", {counts[key]} times" if counts[key] > 1 else ""
        yield Finding(
            f"Xid {xid.code} on {who} {ago(xid.age_seconds)}{times}: {meaning}",
            (Evidence("gpu.xids", f"{xid.code}: {xid.text}"[:120], "no such Xid"),),
            where=Where(gpu=device.index if device is not None else None),
            severity=Severity.WARNING if softens and xid.age_seconds > FRESH_SECONDS else None,
        )


def logged(gpu: Gpu, codes: tuple[int, ...], meaning: str) -> Iterator[Finding]:
    """The same for a rule that also looks elsewhere: a log that cannot be read does not stop it."""
    try:
        yield from found(gpu, codes, meaning)
    except CannotLook:
        return


@rule("GPU039", "auxiliary-power-missing", Severity.ERROR, signatures=(r"NVRM: Xid [^\n]*: 54\b",))
def auxiliary_power(gpu: Gpu) -> Iterator[Finding]:
    """A GPU reports that its auxiliary power is missing.

    ## Why it matters
    The card comes up without its power cable and fails as soon as it has work.

    ## Fix
    Check the power cables of the card.

    ## Source
    Xid 54.
    """
    yield from found(gpu, (54,), "the auxiliary power is missing")


@rule(
    "GPU040",
    "gpu-engine-fault",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: (62|109|110|136|140|143|155|156|158)\b",),
)
def engine_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported a fault that only a reset of the GPU clears.

    ## Why it matters
    Ranks on this GPU hang, or get an error at an innocent line later.

    ## Fix
    Reset the GPU; take the node out when it happens again.

    ## Source
    Xids 62, 109, 110, 136, 140, 143, 155, 156, 158 (NVIDIA's catalogue: reset GPU).
    """
    codes = (62, 109, 110, 136, 140, 143, 155, 156, 158)
    yield from found(gpu, codes, "a fault that needs a reset of the GPU", softens=True)


@rule("GPU041", "contained-memory-error", Severity.WARNING, signatures=(r"NVRM: Xid [^\n]*: 94\b",))
def contained(gpu: Gpu) -> Iterator[Finding]:
    """A memory error of a GPU was contained, and ended the program that used the memory.

    ## Why it matters
    That program ends with an uncorrectable ECC error; the other processes of the GPU go on.

    ## Fix
    Start the job again, and reset the GPU soon.

    ## Source
    Xid 94.
    """
    yield from found(gpu, (94,), "a memory error was contained; expected none")


@rule("GPU042", "uncontained-memory-error", Severity.ERROR, signatures=(r"NVRM: Xid [^\n]*: 95\b",))
def uncontained(gpu: Gpu) -> Iterator[Finding]:
    """A memory error of a GPU was not contained: the GPU needs a reset.

    ## Why it matters
    Every process on the GPU is affected, and later work may use spoilt values.

    ## Fix
    Reset the GPU, then look at its remapped rows.

    ## Source
    Xid 95.
    """
    yield from found(gpu, (95,), "a memory error that was not contained", softens=True)


@rule(
    "GPU043",
    "application-fault-xid",
    Severity.NOTE,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]*: (13|31|32|39|40|41|43|69|70|71|72|80)\b",),
)
def application_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver logged faults that programs caused, again and again on one GPU.

    ## Why it matters
    Mostly an illegal access in a kernel. One such line says nothing of the hardware; one GPU that repeats it with unlike programs
    may be broken.

    ## Fix
    Look at the error of the program that ran there.

    ## Source
    Xids 13, 31, 32, 39 to 41, 43, 69 to 72, 80.
    """
    codes = (13, 31, 32, 39, 40, 41, 43, 69, 70, 71, 72, 80)
    repeated = Counter(xid.bus_id for xid in gpu.recent(codes))
    places = {bus_id for bus_id, times in repeated.items() if times >= REPEATED}
    yield from found(gpu, codes, "a program's fault", among=places)
