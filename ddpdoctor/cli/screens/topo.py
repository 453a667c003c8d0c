"""`ddpdoctor topo`: the matrix as `nvidia-smi topo -m` prints it, then links, peer access, and NCCL's paths."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ddpdoctor.cli.output import WIDEST
from ddpdoctor.cli.screens.links import about_links, about_peers
from ddpdoctor.facts.nccl_paths import NcclPath, nccl_paths
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.topo import Topo
from ddpdoctor.facts.visibility import visible

__all__ = ["draw"]

LEGEND = (
    ("X", "self"),
    ("SYS", "PCIe and the link between NUMA nodes"),
    ("NODE", "PCIe and the link between host bridges of one NUMA node"),
    ("PHB", "PCIe and one host bridge, typically the CPU"),
    ("PXB", "several PCIe bridges, no host bridge"),
    ("PIX", "at most one PCIe bridge or switch"),
    ("PSB", "the same board"),
    ("NV#", "# bonded NVLinks"),
)
GREEN, YELLOW, RED, PLAIN = "\033[32m", "\033[33m", "\033[31m", "\033[0m"
PAIRS_SHOWN = 6


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The matrix. In a pipe each GPU or NIC has one line of cells separated by tabs, however long.

    On a terminal the columns are as narrow as their cells, and those that do not fit beside the others are printed below.
    """
    topo = facts.topo
    if topo is None:
        reason = next((g.reason for g in facts.gaps if g.path == "topo"), "not collected")
        return f"topology: {reason}\n"
    if not topo.gpus:
        gap = topo.gap("gpus")
        return f"topology: {gap.reason if gap else 'no GPU'}\n"
    is_of_files = facts.gpu is not None and facts.gpu.is_snapshot
    if is_of_files and len(topo.gpus) > 1 and not (topo.pairs or any(gpu.links for gpu in topo.gpus)):
        return "topology: the files show no path between GPUs\n"
    rows = _rows(topo)
    cells = {cell for row in topo.matrix() for cell in row}
    used = [f"  {word:<4} = {text}" for word, text in LEGEND if word in cells or (word == "NV#" and _has_nvlink(cells))]
    nics = [f"  NIC{at} = {nic.name}" for at, nic in enumerate(topo.nics)]
    gap = topo.gap("gpus")
    about = [
        "",
        "Legend:",
        *used,
        *nics,
        *about_links(topo),
        *([] if is_of_files and not any(pair.read for pair in topo.pairs) else about_peers(topo)),
        *([] if is_of_files else _about_ways(facts, topo)),
        *([f"incomplete: {gap.reason}"] if gap else []),
    ]
    if colour or width < WIDEST:
        lines = [*_blocks(rows, width, colour=colour), *(part for line in about for part in _folded(line, width))]
    else:
        lines = ["\t" + "\t".join(rows[0]), *(_plain(row, topo) for row in rows[1:]), *about]
    return "\n".join(lines) + "\n\n"


def _folded(line: str, width: int) -> list[str]:
    """A line that does not fit continues below, indented by two columns."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _has_nvlink(cells: set[str]) -> bool:
    return any(cell.startswith("NV") for cell in cells)


def _rows(topo: Topo) -> list[list[str]]:
    names = [f"GPU{g.index}" for g in topo.gpus] + [f"NIC{at}" for at in range(len(topo.nics))]
    rows = [[*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    for at, cells in enumerate(topo.matrix()):
        row = [names[at], *(f" {cell} " if cell == "X" else cell for cell in cells)]
        if at < len(topo.gpus):
            gpu = topo.gpus[at]
            numa = "N/A" if gpu.gpu_numa_id is None else str(gpu.gpu_numa_id)
            row += [gpu.cpu_affinity or "N/A", gpu.numa_affinity or "N/A", numa]
        rows.append(row)
    return rows


def _plain(row: list[str], topo: Topo) -> str:
    """A row as nvidia-smi writes it: a second tab before the GPU's own NUMA node."""
    cells = 1 + len(topo.gpus) + len(topo.nics)
    return "\t".join(row if len(row) == cells else [*row[:-1], "", row[-1]])


def _blocks(rows: list[list[str]], width: int, *, colour: bool) -> Iterator[str]:
    """Narrow columns below their headers, as many side by side as fit; then the rest."""
    table = [["", *rows[0]], *rows[1:]]
    cells = [[cell.strip() for cell in row] for row in table]
    widths = [max(len(row[at]) for row in cells if at < len(row)) for at in range(len(table[0]))]
    first = 1
    while first < len(widths):
        last, room = first + 1, width - widths[0] - 1 - widths[first]
        while last < len(widths) and widths[last] < room:
            room -= widths[last] + 1
            last += 1
        if first > 1:
            yield ""
        for y, row in enumerate(cells):
            shown = [_paint(row[at], widths[at], colour=colour and y > 0) for at in range(first, min(last, len(row)))]
            yield " ".join((f"{row[0]:<{widths[0]}}", *shown)).rstrip()
        first = last


def _paint(cell: str, width: int, *, colour: bool) -> str:
    paint = GREEN if cell.startswith("NV") else RED if cell == "ERR!" else YELLOW if cell in ("SYS", "NODE") else ""
    return f"{paint}{cell:<{width}}{PLAIN}" if colour and paint else f"{cell:<{width}}"


def _about_ways(facts: Facts, topo: Topo) -> Iterator[str]:
    """The paths that NCCL would use between the local ranks, which are the visible GPUs in CUDA's order."""
    environ = facts.environ
    seen = visible(environ.variables, facts.gpu).devices if environ and facts.gpu else tuple(g.index for g in topo.gpus)
    ranks = {index: rank for rank, index in enumerate(seen)}
    groups: dict[tuple[str, str, str], list[NcclPath]] = {}
    for way in nccl_paths(topo, environ.settings if environ else {}, seen):
        groups.setdefault((way.uses, way.distance, way.surprise), []).append(way)
    if groups:
        yield ""
        yield "NCCL between local ranks (rank N uses CUDA device N):"
    total = sum(map(len, groups.values()))
    for (uses, distance, surprise), found in groups.items():
        pairs = [f"{ranks[w.a]}-{ranks[w.b]}" for w in found[:PAIRS_SHOWN]]
        more = f" and {len(found) - PAIRS_SHOWN} more" if len(found) > PAIRS_SHOWN else ""
        where = f"all {total} pairs" if len(found) == total > 1 else f"ranks {', '.join(pairs)}{more}"
        yield f"  {uses} ({distance}): {where}{f'; surprising: {surprise}' if surprise else ''}"
