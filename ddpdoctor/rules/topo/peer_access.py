"""GPUs that reach each other only through the host."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.topo import Pair, Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

SYSTEM = 50


def _pairs(topo: Topo) -> list[Pair]:
    """The pairs of GPUs that answer and that no NVLink connects."""
    alive = {g.index for g in topo.all_gpus()}
    if len(alive) < 2:
        not_here("one GPU has no peer")
    linked = [pair for pair, _ in topo.linked_pairs()]
    return [p for p in topo.pairs if p not in linked and {p.a, p.b} <= alive]


@rule("TOPO004", "peer-access-none", Severity.NOTE)
def peer_access_none(topo: Topo) -> Iterator[Finding]:
    """No pair of GPUs has peer access.

    ## Why it matters
    NCCL copies between the GPUs through host memory (/dev/shm). That is how GeForce cards are; on data-centre cards it
    means that ACS, the IOMMU, a vGPU or a registry key stands in the way.

    ## Fix
    Nothing on GeForce. On data-centre cards check ACS and IOMMU, virtualisation and the driver's registry keys.

    ## Source
    nvmlDeviceGetP2PStatus, read, for every pair.
    """
    pairs = _pairs(topo)
    if len(pairs) < len(topo.pairs):
        return  # NVLink peers are there
    known = [p for p in pairs if p.read is not None]
    if not known:
        unanswered("NVML told nothing of peer access")
    if all(p.read != "OK" for p in known):
        words = ", ".join(sorted({p.read or "" for p in known}))
        yield Finding(
            f"none of {len(known)} pairs of GPUs has peer access (NVML: {words}); NCCL goes through host memory",
            evidence=(Evidence("topo.pairs", words, "OK"),),
        )


@rule("TOPO024", "gpu-pair-crosses-sockets", Severity.NOTE)
def gpu_pair_crosses_sockets(topo: Topo) -> Iterator[Finding]:
    """All GPUs reach each other through the link between the CPU sockets only.

    ## Why it matters
    Every transfer between them crosses the sockets, which NCCL does through shared memory: slower, not broken.

    ## Fix
    Where the machine has other slots or GPUs, use two on one socket.

    ## Source
    nvmlDeviceGetTopologyCommonAncestor answers SYSTEM (50) for every pair.
    """
    pairs = _pairs(topo)
    if not pairs or len(pairs) < len(topo.pairs):
        return
    if all(p.level == SYSTEM for p in pairs):
        first = pairs[0]
        yield Finding(
            f"GPU {first.a} and GPU {first.b} are connected through the CPU sockets only (SYS); expected PHB or nearer",
            evidence=(Evidence("topo.pairs", "SYS", "PIX, PXB, PHB or NODE"),),
        )
