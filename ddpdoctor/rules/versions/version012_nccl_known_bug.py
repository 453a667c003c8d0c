"""VERSION012: NCCL releases with known bugs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus

FIXED = (2, 26, 2)


@cause("VERSION012", "nccl-known-bug", Severity.NOTE, kind="umbrella")
def nccl_known_bug(versions: Versions, gpu: Gpu) -> Iterator[Finding]:
    """This version of NCCL has a known bug on these GPUs.

    ## Why it matters
    The failure looks like a wrong setting. NCCL before 2.26.2 uses more shared memory than consumer Blackwell cards
    have: all_reduce between two RTX 5090 fails with `an illegal memory access was encountered`.

    ## Fix
    Install a newer nvidia-nccl package, or try one with LD_PRELOAD=/path/to/libnccl.so.2.

    ## Example

        CUDA error: an illegal memory access was encountered

        # before: torch brings NCCL 2.25.1
        torchrun --nproc-per-node 2 train.py
        # after
        pip install -U "nvidia-nccl-cu12>=2.26.2"
        torchrun --nproc-per-node 2 train.py

    ## Source
    NVIDIA/nccl#1637, NVIDIA/nccl-tests#287 and #291.
    """
    version = versions.nccl.version if versions.nccl else None
    need_gpus(gpu, 2)
    if version is None:
        not_here("the version of NCCL is unknown")
    if numbers(version) >= FIXED:
        return
    card = next((d.name for d in gpu.devices if (d.compute_capability or "").startswith("12.")), None)
    if card:
        yield Finding(
            f"NCCL {version} fails on {card}; 2.26.2 or later is needed",
            (Evidence("versions.nccl_libraries[0].version", version, "at least 2.26.2"),),
        )
