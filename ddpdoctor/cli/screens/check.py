"""The summary of `ddpdoctor check`: one line per section with its state and what was examined."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.environ import shorten
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Report
from ddpdoctor.rules import area_of

__all__ = ["draw"]

GIB = 1 << 30
COLOURS = {"ok": "green", "note": "cyan", "warning": "bold yellow", "error": "bold red", "unknown": "magenta"}


def draw(facts: Facts, report: Report, sections: tuple[str, ...], *, width: int, colour: bool) -> str:
    """A head line and one row for each of `sections`, at most `width` columns wide."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("section", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what", overflow="fold")
    for section in sections:
        title, describe = _SECTIONS[section]
        state = _state(facts, report, section)
        words = _why_missing(facts, section) if getattr(facts, section) is None else describe(facts)
        table.add_row(Text(title), Text(state, style=COLOURS.get(state, "dim")), Text(words))
    head = Text(f"ddpdoctor check on {facts.hostname}", style="bold")
    pieces: list[RenderableType] = [head, table, Text("")]
    return draw_all(pieces, width=width, colour=colour)


def _state(facts: Facts, report: Report, section: str) -> str:
    """The worst finding of the section's area; `-` where there is nothing to look at, `unknown` where it did not answer."""
    found = [f for f in report.findings if area_of(f.code) == section]
    if section == "nodes":
        return "ok" if facts.nodes is not None and not facts.nodes.missing and not facts.nodes.lacking else "error"
    if found:
        return max(found, key=lambda f: f.worst.weight).worst.value
    if section == "probe" and facts.probe is not None and facts.probe.has_failed:
        return "error"  # whatever the cause is and whichever area it belongs to
    if section in ("gpu", "topo") and facts.gpu is not None and not facts.gpu.devices:
        return "-"
    if getattr(facts, section) is not None:
        return "ok"
    gap = next((g for g in facts.gaps if g.path == section), None)
    return "-" if gap is None or gap.why is Why.NOT_HERE else "unknown"


def _why_missing(facts: Facts, section: str) -> str:
    return next((g.reason for g in facts.gaps if g.path == section), "not looked at")


def _launch(facts: Facts) -> str:
    launch = facts.launch
    assert launch is not None
    line = launch.lines[0] if launch.lines else None
    starter = line.starter if line is not None else None
    if line is None or starter is None:
        return "not recognised"
    plan = line.plan
    nodes = "" if plan is None or plan.nnodes is None else f", {_count(plan.nnodes[1], 'node')}"
    ranks = "" if plan is None or plan.nproc is None else f" of {_count(plan.nproc, 'rank')}"
    return f"{starter.launcher.value}{nodes}{ranks}, read as torch {launch.torch} ({launch.torch_from})"


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
    count = max(nodes.expected or 0, len(nodes.nodes)) if not nodes.missing and not nodes.lacking else len(nodes.nodes)
    unit = "rank" if first.form == Form.ENV else "node"
    names = ", ".join(node.host for node in nodes.nodes[:4]) + (", …" if count > 4 else "")
    slowest = max((link.latency_seconds or 0.0 for link in nodes.links), default=0.0)
    narrowest = min((link.gb_per_s for link in nodes.links if link.gb_per_s), default=None)
    speed = f", {slowest * 1e3:.1f} ms" if slowest else ""
    speed += f" and {narrowest:.2g} GB/s over TCP at the least" if narrowest else ""
    return f"{_count(count, unit)} at {first.master_addr}:{first.master_port}: {names}{speed}"


def _probe(facts: Facts) -> str:
    probe = facts.probe
    assert probe is not None
    ranks = f"{_count(probe.world_size, 'rank')}, {probe.backend or 'no backend'}"
    if probe.has_failed:
        return f"{ranks}: failed after {probe.seconds:.1f} s"
    best = max((m.busbw_gb_per_s or 0.0 for m in probe.measurements if m.collective == "all_reduce"), default=0.0)
    rate = f", all_reduce {best:.1f} GB/s busbw" if best else ""
    return f"{ranks}: every collective gave the right values{rate}, {probe.seconds:.1f} s"


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
