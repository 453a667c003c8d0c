"""What many rules need to exist: without it they skip, all with the same reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

__all__ = ["need_gpus"]


def need_gpus(gpu: Gpu, least: int = 1) -> None:
    """Skip the rule if this machine has fewer GPUs.

    Raises:
        CannotLook: no NVIDIA GPU, or fewer than `least`, which is 1 or 2.
    """
    if not gpu.devices:
        not_here("no NVIDIA GPU")
    if len(gpu.devices) < least:
        not_here("fewer than two GPUs")
