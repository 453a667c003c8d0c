"""TOPO012 to TOPO018: NVLinks that are up and not well, and what the kernel's log says of links and switches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.nvlink_models import nvlink_model
from ddpdoctor.facts.topo import GpuNode, Link, Topo
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import found, of_switches

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

PEERS_SHARE, MODEL_SHARE = 0.95, 0.9
"""Of the fastest link of the same model here, and of the published rate, which some boards come near only."""
CRC_LEAST = 5
CRC_PER_SECOND = 1.0


def _links(topo: Topo) -> list[tuple[GpuNode, Link]]:
    """The active links of all GPUs."""
    links = [(g, link) for g in topo.all_gpus() for link in g.links if link.is_active]
    if not links:
        not_here("no NVLink is active here")
    return links


@cause("TOPO012", "nvlink-speed-low", Severity.WARNING)
def nvlink_speed_low(topo: Topo) -> Iterator[Finding]:
    """An NVLink runs below the speed of the other links, or of its model.

    ## Why it matters
    The rings that cross it are as slow as it is, and no error is counted.

    ## Fix
    Reset the GPUs and check the firmware; have the board looked at when it stays.

    ## Source
    NVML field 164 of each link, held against the links of all GPUs of the same model, then against the published rate.
    """
    known = [(g, link, link.speed_mb_per_s) for g, link in _links(topo) if link.speed_mb_per_s]
    if not known:
        unanswered("NVML tells no link's speed")
    fastest: dict[str | None, int] = {}
    for gpu, _, speed in known:
        fastest[gpu.name] = max(fastest.get(gpu.name, 0), speed)
    slow: dict[int, list[tuple[int, int, int]]] = {}
    for gpu, link, speed in known:
        best, model = fastest[gpu.name], nvlink_model(gpu.name)
        if speed < PEERS_SHARE * best:
            slow.setdefault(gpu.index, []).append((link.index, speed, best))
        elif model is not None and speed < MODEL_SHARE * model.mb_per_s:
            slow.setdefault(gpu.index, []).append((link.index, speed, model.mb_per_s))
    for index, links in slow.items():
        least, best = min(speed for _, speed, _ in links), links[0][2]
        names = ", ".join(str(link) for link, _, _ in links)
        yield Finding(
            f"{_plural(names)} of GPU {index} {'run' if ',' in names else 'runs'} at {least} MB/s; expected {best} MB/s",
            (Evidence(f"topo.gpus[{index}].links[{links[0][0]}].speed_mb_per_s", str(least), str(best)),),
            where=Where(gpu=index),
        )


def _plural(names: str) -> str:
    return f"NVLinks {names}" if "," in names else f"NVLink {names}"


@cause("TOPO013", "nvlink-error-counters-growing", Severity.WARNING)
def nvlink_error_counters_growing(topo: Topo) -> Iterator[Finding]:
    """The error counters of an NVLink grow while we look.

    ## Why it matters
    Data is sent twice today; a link fault comes next.

    ## Fix
    Take the node out of use, reset the GPUs, and have the board looked at when the counters go on.

    ## Source
    nvmlDeviceGetNvLinkErrorCounter twice: one replay or recovery (DCGM), or five CRC errors (imbue) and one a second (DCGM).
    What a counter has gathered over its life says nothing.
    """
    links = _links(topo)
    known = [(g, x) for g, x in links if x.recovery_growth is not None]
    if not known or topo.sample_seconds is None:
        not_here("the counters were not told twice")
    growing: dict[int, dict[int, str]] = {}
    for gpu, link in known:
        crc = link.crc_growth or 0
        parts = [
            (link.replay_growth or 0, "replays"),
            (link.receive_growth or 0, "receive errors"),
            (link.recovery_growth or 0, "recoveries"),
        ]
        if crc >= CRC_LEAST and crc / topo.sample_seconds >= CRC_PER_SECOND:
            parts.append((crc, "CRC errors"))
        grown = ", ".join(f"{count} {word}" for count, word in parts if count > 0)
        if grown:
            growing.setdefault(gpu.index, {})[link.index] = grown
    for index, counts in growing.items():
        first, words = next(iter(counts.items()))
        others = f"; {len(counts) - 1} more of its links too" if len(counts) > 1 else ""
        yield Finding(
            f"NVLink {first} of GPU {index} had {words} in {topo.sample_seconds:g} s{others}; expected none",
            tuple(Evidence(f"topo.gpus[{index}].links[{at}]", grown, "no growth") for at, grown in counts.items()),
            where=Where(gpu=index),
        )


@cause(
    "TOPO014",
    "nvlink-fault",
    Severity.ERROR,
    signatures=(r"uncorrectable NVLink error", r"NVRM: Xid [^\n]*: (74|14[4-9]|150)\b"),
    xids=XidKind.NVLINK_FAULT,
)
def nvlink_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported an NVLink fault.

    ## Why it matters
    "uncorrectable NVLink error": the line names no link, and the error sticks to the next CUDA call, whatever that is.

    ## Fix
    Take the node out, reset GPUs and fabric together; have the board replaced when it happens again.

    ## Source
    Xids 74 (up to NVLink 4) and 144 to 150 (NVLink 5) in the kernel's log of this boot, in the last day.
    """
    yield from found(gpu, XidKind.NVLINK_FAULT)


@cause("TOPO015", "nvswitch-fault", Severity.ERROR, yields_to=("TOPO016",), signatures=(r"SXid[^\n]*[^-]\bFatal,",))
def nvswitch_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported a fatal error of an NVSwitch.

    ## Why it matters
    All GPUs behind the switch are affected, and jobs that use them end or hang.

    ## Fix
    Read the fabric manager's log, and reboot the node.

    ## Source
    SXid lines with "Fatal" in the kernel's log of this boot, in the last day.
    """
    yield from of_switches(gpu)


@cause("TOPO016", "nvswitch-event-nonfatal", Severity.NOTE, kind="noise", signatures=(r"SXid[^\n]*Non-fatal",))
def nvswitch_event_nonfatal() -> None:
    """The driver reported a non-fatal event of an NVSwitch.

    ## Why it matters
    "SXid (PCI:…): 22013, Non-fatal, Link 15 …": the switch recovered by itself, and jobs go on.

    ## Fix
    Nothing, unless the same link repeats it for days.

    ## Source
    SXid lines with "Non-fatal" in the kernel's log.
    """


@cause(
    "TOPO017",
    "remote-nvlink-fault-xid",
    Severity.NOTE,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]*: 137\b",),
    xids=XidKind.REMOTE_NVLINK_FAULT_XID,
)
def remote_nvlink_fault_xid() -> None:
    """A GPU reported a fault that came from a peer over NVLink.

    ## Why it matters
    "NVRM: Xid (PCI:…): 137" is the echo of another GPU's fault: the GPU that prints it is not to blame.

    ## Fix
    Look at the Xids of its peers, on the other trays of the rack too.

    ## Source
    Xid 137.
    """


@cause(
    "TOPO018",
    "c2c-corrected-error",
    Severity.NOTE,
    kind="noise",
    signatures=(r"NVRM: Xid [^\n]*: 121\b",),
    xids=XidKind.C2C_CORRECTED_ERROR,
)
def c2c_corrected_error() -> None:
    """The link between CPU and GPU of one board corrected an error.

    ## Why it matters
    "NVRM: Xid (PCI:…): 121" on Grace boards: nothing was lost.

    ## Fix
    Nothing to do.

    ## Source
    Xid 121.
    """


@nvswitch_fault.look
def nvswitch_fault_in_log(log: Log) -> Iterator[Finding]:
    """Told of the NVSwitch that the kernel names."""
    from ddpdoctor.rules.log.xids import xid_findings

    return xid_findings(nvswitch_fault.rule, lambda xid: xid.is_fatal, log)


@nvswitch_event_nonfatal.look
def nvswitch_event_nonfatal_in_log(log: Log) -> Iterator[Finding]:
    """Told of the NVSwitch that the kernel names."""
    from ddpdoctor.rules.log.xids import xid_findings

    return xid_findings(nvswitch_event_nonfatal.rule, lambda xid: xid.is_harmless, log)
