"""`ddpdoctor topo`: the matrix as `nvidia-smi topo -m` prints it, for people and for scripts that read that."""

from __future__ import annotations

from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.topo import Topo

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


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The matrix with tabs between cells: one line a GPU or NIC whatever the width, so that nothing is cut or wrapped."""
    topo = facts.topo
    if topo is None:
        reason = next((g.reason for g in facts.gaps if g.path == "topo"), "not collected")
        return f"topology: {reason}\n"
    if not topo.gpus:
        gap = topo.gap("gpus")
        return f"topology: {gap.reason if gap else 'no GPU'}\n"
    lines = _rows(topo)
    cells = {cell for row in topo.matrix() for cell in row}
    used = [f"  {word:<4} = {text}" for word, text in LEGEND if word in cells or (word == "NV#" and _has_nvlink(cells))]
    nics = [f"  NIC{at} = {nic.name}" for at, nic in enumerate(topo.nics)]
    gap = topo.gap("gpus")
    return "\n".join([*lines, "", "Legend:", *used, *nics, *([f"incomplete: {gap.reason}"] if gap else [])]) + "\n\n"


def _has_nvlink(cells: set[str]) -> bool:
    return any(cell.startswith("NV") for cell in cells)


def _rows(topo: Topo) -> list[str]:
    names = [f"GPU{g.index}" for g in topo.gpus] + [f"NIC{at}" for at in range(len(topo.nics))]
    # nvidia-smi begins its header with a tab; here it begins with GPU0, which stands above the first cell all the same
    # when columns are counted by words.
    rows = ["\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for at, cells in enumerate(topo.matrix()):
        row = [names[at], *(f" {cell} " if cell == "X" else cell for cell in cells)]
        if at < len(topo.gpus):
            gpu = topo.gpus[at]
            row += [gpu.cpu_affinity or "N/A", gpu.numa_affinity or "N/A"]
        rows.append("\t".join(row))
    return rows
