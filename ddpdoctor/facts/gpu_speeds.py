"""What a GPU model reaches at most by its maker's data sheet: dense bf16 products, and its memory.

Sources: NVIDIA's data sheets of the products (peak rates without sparsity), read 2026-11: A100 (DS 2021-06), H100, H200, B200
(HGX), GH200, L40S, L4, A10, A30, and A40.
"""

from __future__ import annotations

from ddpdoctor.light_dataclass import dataclass

__all__ = ["GpuSpeed", "published_speed"]


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """Peak rates of one model: bf16 TFLOP/s (dense), and the bandwidth of its memory in GB/s (10^9)."""

    model: str
    gemm_tflops: float
    memory_gb_per_s: float


TABLE = (
    GpuSpeed("B200", 2250, 7700),
    GpuSpeed("GH200", 989, 4000),
    GpuSpeed("H200 NVL", 835, 4800),
    GpuSpeed("H200", 989, 4800),
    GpuSpeed("H100 NVL", 835, 3900),
    GpuSpeed("H100 PCIe", 756, 2000),
    GpuSpeed("H100 80GB HBM3", 989, 3350),
    GpuSpeed("A100-SXM4-80GB", 312, 2039),
    GpuSpeed("A100-SXM4-40GB", 312, 1555),
    GpuSpeed("A100 80GB PCIe", 312, 1935),
    GpuSpeed("A100-PCIE-40GB", 312, 1555),
    GpuSpeed("A30", 165, 933),
    GpuSpeed("A40", 149.7, 696),
    GpuSpeed("L40S", 362, 864),
    GpuSpeed("A10G", 70, 600),
    GpuSpeed("A10", 125, 600),
    GpuSpeed("L4", 121, 300),
)
"""The first row whose model is in the device's name counts; longer names stand before shorter ones."""


def published_speed(device: str | None) -> GpuSpeed | None:
    """The row of this device, by the name that CUDA gives it; None where nothing is known."""
    words = (device or "").replace("NVIDIA ", "").split()
    return next((row for row in TABLE if _contains(words, row.model.split())), None)


def _contains(words: list[str], wanted: list[str]) -> bool:
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))
