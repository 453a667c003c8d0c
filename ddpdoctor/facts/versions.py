"""`versions`: torch, CUDA, NCCL, Python: what is installed and what would be loaded, read without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Versions"]


@dataclass(frozen=True, slots=True)
class Versions(Section):
    """`torch` is None when no torch is installed for `python_path`; `torch_cuda` is None for a CPU build."""

    python: str = ""
    python_path: str = ""
    torch: str | None = None
    torch_path: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    gaps: tuple[Gap, ...] = ()
