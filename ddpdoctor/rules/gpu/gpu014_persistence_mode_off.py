"""GPU014: the driver unloads its state when no process uses the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


@cause("GPU014", "persistence-mode-off", Severity.NOTE)
def persistence_mode_off(gpu: Gpu) -> Iterator[Finding]:
    """Persistence mode is off.

    ## Why it matters
    The driver drops its state between jobs: the first CUDA call of each job takes seconds, and clock and power settings are lost.

    ## Fix
    Start the persistence daemon, as root on that node.

    ## Example
    ddpdoctor's message:

        persistence mode is off on GPU 0, 1, 2, 3

    On that node, as root:

        systemctl enable --now nvidia-persistenced
        nvidia-smi --query-gpu=persistence_mode --format=csv

    ## Source
    nvmlDeviceGetPersistenceMode returns 0.
    """
    off = [d for d, mode in gpu.each("persistence_mode") if mode == 0 and not d.virtualization_mode]
    if off:
        indices = ", ".join(str(d.index) for d in off)
        yield Finding(
            f"persistence mode is off on GPU {indices}",
            evidence=tuple(Evidence(f"gpu.devices[{d.index}].persistence_mode", "0", "1") for d in off),
            fix_command="systemctl enable --now nvidia-persistenced",
            where=Where(gpu=off[0].index if len(off) == 1 else None),
        )
