"""The sections of a preflight: each with its state, and what was seen or why nothing was."""

from __future__ import annotations

from collections.abc import Callable

from ddpdoctor.examined import CheckedSection, SectionState
from ddpdoctor.facts.environ import shorten
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Report, Severity
from ddpdoctor.launch.judged import described, why_not_judged
from ddpdoctor.rules import area_of

__all__ = ["sections_of", "subject_of"]

GIB = 1 << 30


def sections_of(facts: Facts, report: Report, areas: tuple[str, ...]) -> tuple[CheckedSection, ...]:
    """One section for each of `areas`, in their order."""
    sections = []
    for area in areas:
        title, describe = _SECTIONS[area]
        state = _state(facts, report, area)
        text = _why_missing(facts, area) if getattr(facts, area) is None else describe(facts)
        sections.append(CheckedSection(area, title, state, text, _code(report, area)))
    return tuple(sections)


def subject_of(facts: Facts) -> str:
    """What a preflight examined: the launch line with its nodes, ranks and script, otherwise this machine."""
    if facts.launch is None:
        return f"this machine: {facts.hostname}"
    return f"{described(facts.launch)} on {facts.hostname}"


def _code(report: Report, area: str) -> str:
    found = (
        finding for finding in report.findings if area_of(finding.code) == area and finding.worst is not Severity.NOTE
    )
    return next((finding.code for finding in found), "")


def _state(facts: Facts, report: Report, area: str) -> SectionState:
    """The worst finding of the area; unknown if something that exists did not answer, skipped if there is nothing to examine."""
    findings = [finding for finding in report.findings if area_of(finding.code) == area]
    if area == "nodes":
        return _nodes_state(facts)
    if findings:
        worst = max(findings, key=lambda finding: finding.worst.weight).worst
        return SectionState(worst.value)
    if area == "probe" and facts.probe is not None and facts.probe.has_failed:
        return SectionState.ERROR  # whatever the cause is, and whatever its area
    if area in ("gpu", "topo") and facts.gpu is not None and not facts.gpu.devices:
        return SectionState.SKIPPED
    if area == "versions" and facts.versions is not None and facts.versions.torch is None:
        return SectionState.SKIPPED
    if area == "launch" and _unknown_of_launch(facts) is not None:
        return SectionState.UNKNOWN
    if getattr(facts, area) is not None:
        return SectionState.OK
    gap = next((gap for gap in facts.gaps if gap.path == area), None)
    return SectionState.SKIPPED if gap is None or gap.why is Why.NOT_HERE else SectionState.UNKNOWN


def _nodes_state(facts: Facts) -> SectionState:
    nodes = facts.nodes
    return SectionState.OK if nodes is not None and nodes.is_complete else SectionState.ERROR


def _unknown_of_launch(facts: Facts) -> str | None:
    """Why it is unknown whether the launch line starts: it was not understood, or what it starts is not on this machine."""
    if facts.launch is None or not facts.launch.lines:
        return "no launch line"
    reason = why_not_judged(facts.launch.lines[0])
    return reason or next(iter(facts.startup.unknown if facts.startup is not None else ()), None)


def _why_missing(facts: Facts, area: str) -> str:
    return next((gap.reason for gap in facts.gaps if gap.path == area), "not examined")


def _launch(facts: Facts) -> str:
    launch = facts.launch
    assert launch is not None
    line = launch.lines[0] if launch.lines else None
    starter = line.starter if line is not None else None
    unknown = _unknown_of_launch(facts)
    if line is None or starter is None:
        return unknown or described(launch)
    plan = line.plan
    nodes = "" if plan is None or plan.nnodes is None else f", {_count(plan.nnodes[1], 'node')}"
    ranks = "" if plan is None or plan.nproc is None else f" of {_count(plan.nproc, 'rank')}"
    text = f"{starter.launcher.value}{nodes}{ranks}, read as torch {launch.torch} ({launch.torch_from})"
    return text if unknown is None else f"{text}; {unknown}"


def _environ(facts: Facts) -> str:
    environ = facts.environ
    assert environ is not None
    launcher = environ.launcher
    started = "no launcher" if launcher is None else launcher.title
    place = f", rank {environ.rank} of {environ.world_size}" if environ.rank is not None else ""
    master = f", master {shorten(environ.master_addr, 40)}" if environ.master_addr else ""
    return f"{started}{place}{master}, {_count(len(environ.variables), 'variable')} set"


def _host(facts: Facts) -> str:
    host = facts.host
    assert host is not None
    words = []
    if host.cpus_allowed is not None:
        words.append(_count(host.cpus_allowed, "CPU"))
    if host.memory_total_bytes is not None:
        words.append(f"{host.memory_total_bytes / GIB:.0f} GiB memory")
    if host.shm_total_bytes is not None:
        words.append(f"/dev/shm {_size(host.shm_total_bytes)}")
    words.append(host.container or "no container")
    return ", ".join(words)


def _net(facts: Facts) -> str:
    net = facts.net
    assert net is not None
    carriers = [i for i in net.interfaces if i.is_running and i.addresses and i.kind != "loopback"]
    shown = [f"{i.name} {i.addresses[0].ip}" for i in carriers[:3]]
    more = f" and {len(carriers) - 3} more" if len(carriers) > 3 else ""
    return (", ".join(shown) or "only the loopback interface") + more


def _gpu(facts: Facts) -> str:
    gpu = facts.gpu
    assert gpu is not None
    others = f"{', '.join(gpu.other_accelerators)}: not judged by ddpdoctor" if gpu.other_accelerators else ""
    if not gpu.devices:
        gap = gpu.gap("devices")
        return others or (gap.reason if gap is not None else "NVML sees none")
    names = {d.name or "unnamed" for d in gpu.devices}
    seen = visible(facts.environ.variables if facts.environ else {}, gpu).count
    hidden = "" if seen == len(gpu.devices) else f", {seen} visible to CUDA"
    driver = f", driver {gpu.driver_version}" if gpu.driver_version else ""
    return f"{len(gpu.devices)}x {' / '.join(sorted(names))}{hidden}{driver}" + (f"; {others}" if others else "")


def _topo(facts: Facts) -> str:
    topo = facts.topo
    assert topo is not None
    cells = {cell for i, row in enumerate(topo.matrix()) for j, cell in enumerate(row) if i != j}
    if cells:
        return f"between GPUs: {', '.join(sorted(cells))}"
    return "one GPU: nothing to connect" if topo.matrix() else "no GPU to connect"


def _versions(facts: Facts) -> str:
    versions = facts.versions
    assert versions is not None
    torch = "no torch" if versions.torch is None else f"torch {versions.torch} ({versions.build})"
    nccl = f", NCCL {versions.nccl.version}" if versions.nccl is not None and versions.nccl.version else ""
    return f"{torch}{nccl}, Python {versions.python}"


def _nodes(facts: Facts) -> str:
    nodes = facts.nodes
    assert nodes is not None
    first = nodes.nodes[0]
    count = nodes.joined_count
    unit = "rank" if first.form == Form.ENV else "node"
    place = f"{first.master_addr}:{first.master_port}"
    if nodes.absent_count:
        absent = ", ".join(str(number) for number in nodes.absent[:4]) + (", …" if len(nodes.absent) > 4 else "")
        who = f" (missing: {unit} {absent})" if absent else ""
        return f"{count} of {count + nodes.absent_count} joined at {place}{who}"
    names = ", ".join(node.host for node in nodes.nodes[:4]) + (", …" if count > 4 else "")
    slowest = max((link.latency_seconds or 0.0 for link in nodes.links), default=0.0)
    narrowest = min((link.gb_per_s for link in nodes.links if link.gb_per_s), default=None)
    speed = f", {slowest * 1e3:.1f} ms" if slowest else ""
    speed += f" and {narrowest:.2g} GB/s over TCP at least" if narrowest else ""
    return f"{_count(count, unit)} at {place}: {names}{speed}"


def _probe(facts: Facts) -> str:
    probe = facts.probe
    assert probe is not None
    ranks = f"{_count(probe.world_size, 'rank')}, {probe.backend or 'no backend'}"
    if probe.has_failed:
        return f"{ranks}: failed after {probe.seconds:.1f} s"
    best = max((m.busbw_gb_per_s or 0.0 for m in probe.measurements if m.collective == "all_reduce"), default=0.0)
    rate = f", all_reduce {best:.2g} GB/s busbw" if best else ""
    return f"{ranks}: all collectives returned correct values{rate}, {probe.seconds:.1f} s"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"


_SECTIONS: dict[str, tuple[str, Callable[[Facts], str]]] = {
    "launch": ("launch line", _launch),
    "environ": ("environment", _environ),
    "host": ("host", _host),
    "net": ("network", _net),
    "gpu": ("GPUs", _gpu),
    "topo": ("topology", _topo),
    "versions": ("versions", _versions),
    "nodes": ("nodes", _nodes),
    "probe": ("probe", _probe),
}
