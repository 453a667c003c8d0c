"""TOPO012 to TOPO018: NVLinks that are slow or have errors, and link and switch faults in the kernel log."""

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
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import of_switches, recent_xids

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

PEERS_SHARE, MODEL_SHARE = 0.95, 0.9
"""Shares of the fastest link of the same model here, and of the published rate, which some boards do not quite reach."""
CRC_FAILURE_PER_SECOND = 100.0
"""From this rate on DCGM fails the link; from one CRC error on it warns."""


def _links(topo: Topo) -> list[tuple[GpuNode, Link]]:
    """The active links of all GPUs."""
    links = [(g, link) for g in topo.all_gpus() for link in g.links if link.is_active]
    if not links:
        not_here("no active NVLink")
    return links


@cause("TOPO012", "nvlink-speed-low", Severity.WARNING)
def nvlink_speed_low(topo: Topo) -> Iterator[Finding]:
    """An NVLink is slower than the other links, or than its model allows.

    ## Why it matters
    The rings that use this link are as slow as the link, and no error is counted.

    ## Fix
    Reset the GPUs on that node and check their firmware; if the link stays slow, have the board inspected.

    ## Example
    ddpdoctor's message:

        GPU 0: NVLink 1 runs at 13281 MB/s instead of 26562 MB/s

    On that node, as root:

        nvidia-smi nvlink --status -i 0
        nvidia-smi --gpu-reset

    ## Source
    NVML field 164 of each link, compared with the links of all GPUs of the same model, then with the published rate.
    """
    known = [(g, link, link.speed_mb_per_s) for g, link in _links(topo) if link.speed_mb_per_s]
    if not known:
        unanswered("NVML reports no link speed")
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
            f"GPU {index}: {_plural(names)} {'run' if ',' in names else 'runs'} at {least} MB/s instead of {best} MB/s",
            (Evidence(f"topo.gpus[{index}].links[{links[0][0]}].speed_mb_per_s", str(least), str(best)),),
            where=Where(gpu=index),
        )


def _plural(names: str) -> str:
    return f"NVLinks {names}" if "," in names else f"NVLink {names}"


@cause("TOPO013", "nvlink-error-counters-growing", Severity.WARNING)
def nvlink_error_counters_growing(topo: Topo) -> Iterator[Finding]:
    """The error counters of an NVLink are growing.

    ## Why it matters
    Data is sent twice now, and a link fault often follows.

    ## Fix
    Take the node out of service and reset the GPUs; if the counters keep growing, have the board inspected.

    ## Example
    ddpdoctor's message:

        GPU 0: NVLink 3 had 40 CRC errors in 0.1 s

    On that node, twice, a minute apart:

        nvidia-smi nvlink -e -i 0

    ## Source
    nvmlDeviceGetNvLinkErrorCounter twice: one replay, recovery or CRC error in between (DCGM; it fails a link at 100 CRC
    errors/s). The total over the counter's life is not used: healthy links have errors too.
    """
    links = _links(topo)
    known = [(g, x) for g, x in links if x.recovery_growth is not None]
    if not known or topo.sample_seconds is None:
        not_here("the counters were not sampled twice")
    growing: dict[int, dict[int, str]] = {}
    failing: dict[int, bool] = {}
    for gpu, link in known:
        crc = link.crc_growth or 0
        parts = [
            (link.replay_growth or 0, "replay", "replays"),
            (link.receive_growth or 0, "receive error", "receive errors"),
            (link.recovery_growth or 0, "recovery", "recoveries"),
        ]
        parts.append((crc, "CRC error", "CRC errors"))
        failing[gpu.index] = failing.get(gpu.index, False) or crc / topo.sample_seconds >= CRC_FAILURE_PER_SECOND
        grown = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in parts if count > 0)
        if grown:
            growing.setdefault(gpu.index, {})[link.index] = grown
    for index, counts in growing.items():
        first, errors = next(iter(counts.items()))
        others = f"; {len(counts) - 1} more links have errors too" if len(counts) > 1 else ""
        others += "; DCGM fails a link at this rate" if failing[index] else ""
        yield Finding(
            f"GPU {index}: NVLink {first} had {errors} in {topo.sample_seconds:g} s{others}",
            tuple(Evidence(f"topo.gpus[{index}].links[{link}]", grown, "no growth") for link, grown in counts.items()),
            where=Where(gpu=index),
        )


@cause(
    "TOPO014",
    "nvlink-fault",
    Severity.ERROR,
    signatures=(r"uncorrectable NVLink error", r"NVRM: Xid [^\n]{0,80}: (74|14[4-9]|150)\b"),
    xids=XidKind.NVLINK_FAULT,
)
def nvlink_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported an NVLink fault.

    ## Why it matters
    The job fails with `uncorrectable NVLink error` at whatever CUDA call comes next, and the message does not name the link.

    ## Fix
    Take the node out of service and reset GPUs and fabric together; if it happens again, have the board replaced.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 74, pid=2121, name=python3, NVLink: fatal error detected on link 5

    On that node, as root, with no CUDA process running:

        nvidia-smi -r
        nvidia-smi nvlink -e

    ## Source
    Xids 74 (up to NVLink 4) and 144 to 150 (NVLink 5) in the kernel log of this boot, in the last day.
    """
    yield from recent_xids(gpu, XidKind.NVLINK_FAULT)


@cause(
    "TOPO015", "nvswitch-fault", Severity.ERROR, yields_to=("TOPO016",), signatures=(r"SXid[^\n]{0,100}[^-]\bFatal,",)
)
def nvswitch_fault(gpu: Gpu) -> Iterator[Finding]:
    """The driver reported a fatal error of an NVSwitch.

    ## Why it matters
    All GPUs connected to the switch are affected, and jobs that use them fail or hang.

    ## Fix
    Read the fabric manager's log on that node (/var/log/fabricmanager.log), then reboot the node.

    ## Example
    In the kernel log:

        nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up

    On that node, as root:

        tail -n 50 /var/log/fabricmanager.log
        reboot

    ## Source
    SXid lines with "Fatal" in the kernel log of this boot, in the last day.
    """
    yield from of_switches(gpu)


@cause("TOPO016", "nvswitch-event-nonfatal", Severity.NOTE, kind="noise", signatures=(r"SXid[^\n]{0,100}Non-fatal",))
def nvswitch_event_nonfatal() -> None:
    """The driver reported a non-fatal event of an NVSwitch.

    ## Why it matters
    The switch recovered by itself and jobs continue: `SXid (PCI:…): 22013, Non-fatal, Link 15 …`.

    ## Fix
    Do nothing, unless the same link repeats it for days.

    ## Example
    In the kernel log:

        nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link 15 Minion Link NA interrupt

    On that node, to see how often it repeats:

        dmesg | grep SXid

    ## Source
    SXid lines with "Non-fatal" in the kernel log.
    """


@cause(
    "TOPO017",
    "remote-nvlink-fault-xid",
    Severity.NOTE,
    kind="consequence",
    signatures=(r"NVRM: Xid [^\n]{0,80}: 137\b",),
    xids=XidKind.REMOTE_NVLINK_FAULT_XID,
)
def remote_nvlink_fault_xid() -> None:
    """A GPU reported a fault that came from another GPU over NVLink.

    ## Why it matters
    `NVRM: Xid (PCI:…): 137` is the effect of another GPU's fault. The GPU that prints it is not the cause.

    ## Fix
    Look at the Xids of the other GPUs, including those on the other trays of the rack.

    ## Example
    In the kernel log of node tray-2:

        NVRM: Xid (PCI:0000:3b:00): 137, NVLink FLA privilege error

    On all nodes of the rack:

        dmesg | grep "NVRM: Xid" | grep -v ": 137"

    ## Source
    Xid 137.
    """


@cause(
    "TOPO018",
    "c2c-corrected-error",
    Severity.NOTE,
    kind="noise",
    signatures=(r"NVRM: Xid [^\n]{0,80}: 121\b",),
    xids=XidKind.C2C_CORRECTED_ERROR,
)
def c2c_corrected_error() -> None:
    """The link between the CPU and GPU of one board corrected an error.

    ## Why it matters
    `NVRM: Xid (PCI:…): 121` appears on Grace boards. No data was lost.

    ## Fix
    Do nothing.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0009:01:00): 121, C2C correctable error

    On that node, to see how often it repeats:

        dmesg | grep -c "Xid.*: 121"

    ## Source
    Xid 121.
    """


@nvswitch_fault.look
def nvswitch_fault_in_log(log: Log) -> Iterator[Finding]:
    """Fatal faults of the NVSwitches that the kernel names."""
    from ddpdoctor.rules.log.xids import xid_findings

    return xid_findings(nvswitch_fault.rule, lambda xid: xid.is_fatal, log)


@nvswitch_event_nonfatal.look
def nvswitch_event_nonfatal_in_log(log: Log) -> Iterator[Finding]:
    """Non-fatal events of the NVSwitches that the kernel names."""
    from ddpdoctor.rules.log.xids import xid_findings

    return xid_findings(nvswitch_event_nonfatal.rule, lambda xid: xid.is_harmless, log)
