"""The all_reduce bus bandwidth that GPUs of one node are known to reach, where vendors or operators published it.

Sources: NVIDIA in nccl-tests issues 149, 194, 272 and 290 and nccl issue 1807; the acceptance floors of Azure's
azurehpc-health-checks. Platforms of which only estimates exist are left out: a wrong number is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Busbw", "expected_busbw"]


@dataclass(frozen=True, slots=True)
class Busbw:
    """What is usual for large sizes, and the lowest rate without a finding at `size_bytes` and above, in GB/s (10^9)."""

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
"""`least` is 80 % of the usual, less what 256 MiB lack to the largest sizes; on Hopper without NVLS a ring reaches 360."""


def expected_busbw(device: str | None, gpus: int) -> Busbw | None:
    """The row of this many GPUs of a model in one node, None where nothing was published."""
    return next((row for row in TABLE if device and row.model in device and row.gpus == gpus), None)
