"""GPUs that reach each other only through the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.topo import Pair, Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

SYSTEM = 50
GEFORCE = re.compile(r"\bGeForce RTX [45]0\d\d")


def _pairs(topo: Topo) -> list[Pair]:
    """The pairs of GPUs that answer and that no NVLink connects."""
    alive = {g.index for g in topo.all_gpus()}
    if len(alive) < 2:
        not_here("one GPU has no peer")
    return [p for p in topo.unlinked_pairs() if {p.a, p.b} <= alive]


@cause(
    "TOPO003",
    "peer-access-unsupported",
    Severity.ERROR,
    yields_to=("ENV064",),
    signatures=(
        r"(?:CUDA|[Cc]uda)(?: failure| error|Error)[^\n]*peer access is not supported",
        r"(?:^|['\"`(]|[^:] |[^r]: )peer access is not supported",
        r"Cuda failure 217\b",
    ),
)
def peer_access_unsupported(topo: Topo, environ: Environ) -> Iterator[Finding]:
    """NCCL tries peer access between GPUs that do not support it.

    ## Why it matters
    "Cuda failure 217 'peer access is not supported between these two devices'" under "unhandled cuda error": cards without P2P, a
    virtual machine, mixed models, or each rank seeing one GPU only, with a setting or an NCCL that asks for it all the same.

    ## Fix
    NCCL_P2P_DISABLE=1 for these GPUs, without NCCL_IGNORE_DISABLED_P2P; where each task gets one GPU, let all tasks of a node see
    all of them.

    ## Source
    NCCL src/graph/paths.cc: NCCL_IGNORE_DISABLED_P2P=2 skips NVML's answer; nvmlDeviceGetP2PStatus of every pair.
    """
    if (environ.settings.get("NCCL_IGNORE_DISABLED_P2P") or "").strip() != "2":
        return
    refused = [p for p in _pairs(topo) if p.read not in (None, "OK", "U")]
    if refused and environ.settings.get("NCCL_P2P_DISABLE") != "1":
        first = refused[0]
        yield Finding(
            f"NCCL_IGNORE_DISABLED_P2P=2 makes NCCL use peer access between GPU {first.a} and GPU {first.b}, which NVML refuses "
            f"({first.read}); expected it to be unset",
            evidence=(Evidence("topo.pairs", f"{first.a}-{first.b}: {first.read}", "OK"),),
            fix_command="unset NCCL_IGNORE_DISABLED_P2P",
        )


@cause("TOPO004", "peer-access-none", Severity.NOTE)
def peer_access_none(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """No pair of GPUs has peer access.

    ## Why it matters
    NCCL copies between the GPUs through host memory (/dev/shm). That is how GeForce cards are; on data-centre cards it
    means that ACS, the IOMMU, a vGPU or a registry key stands in the way.

    ## Fix
    Nothing on GeForce. On data-centre cards check ACS and IOMMU, virtualisation and the driver's registry keys.

    ## Source
    nvmlDeviceGetP2PStatus, read, for every pair.
    """
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    pairs = [p for p in _pairs(topo) if not {p.a, p.b} & divided]
    if len(pairs) < len(topo.pairs):
        return  # NVLink peers are there, or MIG (GPU015), which has none
    known = [p for p in pairs if p.read is not None]
    if not known:
        unanswered("NVML told nothing of peer access")
    if all(p.read != "OK" for p in known):
        words = ", ".join(sorted({p.read or "" for p in known}))
        yield Finding(
            f"none of {len(known)} pairs of GPUs has peer access (NVML: {words}); NCCL goes through host memory",
            evidence=(Evidence("topo.pairs", words, "OK"),),
        )


@cause("TOPO024", "gpu-pair-crosses-sockets", Severity.NOTE)
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


@cause(
    "TOPO005",
    "consumer-gpu-peer-access",
    Severity.WARNING,
    signatures=(r"Using RTX \d+ series doesn't support",),
)
def consumer_gpu_peer_access(topo: Topo, environ: Environ) -> Iterator[Finding]:
    """GeForce cards of the 40 and 50 series claim peer access, which does not work on them.

    ## Why it matters
    Copies between the cards hang or bring wrong values with some drivers; accelerate refuses: "Using RTX 4000 series doesn't
    support faster communication".

    ## Fix
    Keep NCCL away from it, or use a driver that does not claim it.

    ## Source
    nvmlDeviceGetP2PStatus answers OK; NVIDIA supports no peer access on these cards.
    """
    names = {g.index: g.name or "" for g in topo.all_gpus()}
    if not any(GEFORCE.search(name) for name in names.values()):
        not_here("no GeForce card of the 40 or 50 series is here")
    if environ.get("NCCL_P2P_DISABLE") == "1":
        return
    claimed = [p for p in _pairs(topo) if p.read == "OK" and all(GEFORCE.search(names[i]) for i in (p.a, p.b))]
    if claimed:
        first = claimed[0]
        yield Finding(
            f"GPU {first.a} and GPU {first.b} ({names[first.a]}) claim peer access; expected none on these cards",
            evidence=(Evidence("topo.pairs", "OK", "CNS or NS"),),
            fix_command="export NCCL_P2P_DISABLE=1",
        )
