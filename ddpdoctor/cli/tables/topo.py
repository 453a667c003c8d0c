"""`ddpdoctor topo`: the matrix as `nvidia-smi topo -m` prints it, then its links, peer access, and what NCCL makes of it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.cli.tables.links import about_links, about_peers
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.topo import Topo
from ddpdoctor.facts.visibility import visible
from ddpdoctor.facts.ways import Way, ways

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
    """The matrix, one line a GPU or NIC whatever the width, so that nothing is cut or wrapped.

    In a pipe the cells are parted by tabs; on a terminal with colours they stand as close as they fit.
    """
    topo = facts.topo
    if topo is None:
        reason = next((g.reason for g in facts.gaps if g.path == "topo"), "not collected")
        return f"topology: {reason}\n"
    if not topo.gpus:
        gap = topo.gap("gpus")
        return f"topology: {gap.reason if gap else 'no GPU'}\n"
    rows = _rows(topo)
    lines = _coloured(rows) if colour else ["\t".join(row) for row in rows]
    cells = {cell for row in topo.matrix() for cell in row}
    used = [f"  {word:<4} = {text}" for word, text in LEGEND if word in cells or (word == "NV#" and _has_nvlink(cells))]
    nics = [f"  NIC{at} = {nic.name}" for at, nic in enumerate(topo.nics)]
    gap = topo.gap("gpus")
    pieces = [
        *lines,
        "",
        "Legend:",
        *used,
        *nics,
        *about_links(topo),
        *about_peers(topo),
        *_about_ways(facts, topo),
        *([f"incomplete: {gap.reason}"] if gap else []),
    ]
    return "\n".join(pieces) + "\n\n"


def _has_nvlink(cells: set[str]) -> bool:
    return any(cell.startswith("NV") for cell in cells)


def _rows(topo: Topo) -> list[list[str]]:
    names = [f"GPU{g.index}" for g in topo.gpus] + [f"NIC{at}" for at in range(len(topo.nics))]
    # nvidia-smi begins its header with a tab; here it begins with GPU0, which stands above the first cell all the same
    # when columns are counted by words.
    rows = [[*names, "CPU Affinity", "NUMA Affinity"]]
    for at, cells in enumerate(topo.matrix()):
        row = [names[at], *(f" {cell} " if cell == "X" else cell for cell in cells)]
        if at < len(topo.gpus):
            gpu = topo.gpus[at]
            row += [gpu.cpu_affinity or "N/A", gpu.numa_affinity or "N/A"]
        rows.append(row)
    return rows


def _coloured(rows: list[list[str]]) -> list[str]:
    """Narrow columns: the header stands above its cells, which a terminal can show for 16 GPUs too."""
    header = ["", *rows[0]]
    table = [header, *rows[1:]]
    widths = [max(len(row[at].strip()) for row in table if at < len(row)) for at in range(len(header))]
    return [
        " ".join(_paint(cell.strip(), widths[at], is_cell=at > 0 and y > 0) for at, cell in enumerate(row)).rstrip()
        for y, row in enumerate(table)
    ]


def _paint(cell: str, width: int, *, is_cell: bool) -> str:
    colour = ""
    if is_cell:
        colour = (
            GREEN if cell.startswith("NV") else RED if cell == "ERR!" else YELLOW if cell in ("SYS", "NODE") else ""
        )
    return f"{colour}{cell:<{width}}{PLAIN}" if colour else f"{cell:<{width}}"


def _about_ways(facts: Facts, topo: Topo) -> Iterator[str]:
    """What NCCL would use between the local ranks, which are the visible GPUs in CUDA's order."""
    environ = facts.environ
    seen = visible(environ.variables, facts.gpu).devices if environ and facts.gpu else tuple(g.index for g in topo.gpus)
    ranks = {index: rank for rank, index in enumerate(seen)}
    groups: dict[tuple[str, str, str], list[Way]] = {}
    for way in ways(topo, environ.settings if environ else {}, seen):
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
