"""The all_reduce bus bandwidth of one node, for platforms where vendors or operators have published it.

Sources: NVIDIA in nccl-tests issues 149, 194, 272 and 290 and nccl issue 1807; the acceptance floors of Azure's
azurehpc-health-checks. Platforms with estimates only are left out: a wrong number is worse than none.
"""

from __future__ import annotations

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Busbw", "expected_busbw"]


@dataclass(frozen=True, slots=True)
class Busbw:
    """The usual rate for large sizes, and the lowest rate without a finding from `size_bytes` on, in GB/s (10^9)."""

    model: str
    gpus: int
    usual_gb_per_s: float
    least_gb_per_s: float
    size_bytes: int = 256 << 20


TABLE = (
    Busbw("V100-SXM2", 8, 120, 86),
    Busbw("A100-SXM4", 8, 230, 166),
    Busbw("H100 80GB HBM3", 8, 470, 250),
    Busbw("H200", 8, 470, 250),
    Busbw("B200", 8, 830, 590),
)
"""`least` is 80 % of the usual rate, reduced because 256 MiB is slower than the largest sizes. On Hopper without NVLS,
a ring reaches 360 GB/s.
"""


def expected_busbw(device: str | None, gpus: int) -> Busbw | None:
    """The row for this GPU model and count in one node, None where nothing was published."""
    return next((row for row in TABLE if device and row.model in device and row.gpus == gpus), None)
