"""`topo`: how the GPUs of one node are connected: NVLink, PCIe, NUMA."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Topo"]


@dataclass(frozen=True, slots=True)
class Topo(Section):
    """`matrix[i][j]` is the cell that `nvidia-smi topo -m` prints for GPUs i and j: X NV18 PIX PXB PHB NODE SYS PSB."""

    matrix: tuple[tuple[str, ...], ...] = ()
    gaps: tuple[Gap, ...] = ()
