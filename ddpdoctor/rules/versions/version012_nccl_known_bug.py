"""VERSION012: versions of NCCL with known faults."""

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
    """This version of NCCL has a known fault on these GPUs.

    ## Why it matters
    It looks like a wrong setting, and every other setting is tried first. NCCL before 2.26.2 takes more shared memory
    than consumer Blackwell cards have: all_reduce between two RTX 5090 fails with an illegal memory access.

    ## Fix
    Install a newer nvidia-nccl package, or try one: LD_PRELOAD=/path/to/libnccl.so.2.

    ## Source
    NVIDIA/nccl#1637, NVIDIA/nccl-tests#287 and #291.
    """
    version = versions.nccl.version if versions.nccl else None
    need_gpus(gpu, 2)
    if version is None:
        not_here("the version of NCCL is not known")
    if numbers(version) >= FIXED:
        return
    card = next((d.name for d in gpu.devices if (d.compute_capability or "").startswith("12.")), None)
    if card:
        yield Finding(
            f"NCCL {version} with {card}: expected 2.26.2 or later",
            (Evidence("versions.nccl_libraries[0].version", version, "at least 2.26.2"),),
        )
