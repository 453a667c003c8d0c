"""The NVLinks of each GPU model: their number, the speed of one, and whether bridges carry them."""

from __future__ import annotations

import functools
import re

from ddpdoctor.light_dataclass import dataclass

__all__ = ["NvlinkModel", "nvlink_model"]


@dataclass(frozen=True, slots=True)
class NvlinkModel:
    """`links` of one GPU, with the one-way rate of each (`nvidia-smi nvlink -s`).

    `bridge_links` is how many links a bridge between two cards carries; 0 where the links run over the board and all
    should be up. Bridges are bought separately, so a card without active links is not faulty.
    """

    links: int
    mb_per_s: int
    generation: int
    bridge_links: int = 0
    may_be_alone: bool = False
    """Boards that are also sold with unconnected links (GH200)."""

    @property
    def gb_per_s(self) -> float:
        """The total one-way bandwidth of all links."""
        return self.links * self.mb_per_s / 1000

    @property
    def published(self) -> str:
        """` at line rate (published: 450 GB/s)` where NVIDIA's data sheets state less than the line rate; "" elsewhere."""
        per_link = PUBLISHED_GB_PER_S.get(self.mb_per_s)
        return "" if per_link is None else f" at line rate (published: {self.links * per_link:.0f} GB/s)"


PUBLISHED_GB_PER_S = {26562: 25.0, 53125: 50.0}
"""By the line rate of a link in MB/s that NVML reports, which includes the coding: what data sheets count, one way."""

MODELS: tuple[tuple[str, NvlinkModel], ...] = (
    (r"P100-SXM2", NvlinkModel(4, 20000, 1)),
    (r"V100-SXM[23]|V100-LS", NvlinkModel(6, 25781, 2)),
    (r"A800-SXM", NvlinkModel(8, 25000, 3)),
    (r"A100-SXM", NvlinkModel(12, 25000, 3)),
    (r"A[18]00\b.*PCIE", NvlinkModel(12, 25000, 3, 4)),
    (r"A30\b", NvlinkModel(4, 25000, 3, 4)),
    (r"A40\b|RTX A(6000|5500|5000|4500)|RTX 3090", NvlinkModel(4, 14062, 3, 4)),
    (r"H200 NVL", NvlinkModel(18, 26562, 4, 2)),
    (r"H100 NVL", NvlinkModel(12, 26562, 4, 2)),
    (r"H[18]00 PCIE", NvlinkModel(12, 26562, 4, 4)),
    (r"GB[23]00\b", NvlinkModel(18, 53125, 5)),
    (r"B[23]00\b", NvlinkModel(18, 53125, 5)),
    (r"H800\b", NvlinkModel(8, 26562, 4)),
    (r"GH200\b", NvlinkModel(18, 26562, 4, may_be_alone=True)),
    (r"H100\b|H200\b|H20\b", NvlinkModel(18, 26562, 4)),
)
"""The first match counts. Sources: NVIDIA's data sheets of these boards, and `nvidia-smi nvlink -s`."""


@functools.cache
def nvlink_model(name: str | None) -> NvlinkModel | None:
    """The model by NVML's name of the GPU; None for one without NVLinks, or one that is not in the table."""
    return next((model for pattern, model in MODELS if re.search(rf"\b(?:{pattern})", name or "", re.IGNORECASE)), None)
