"""TOPO003 to TOPO005, TOPO024: GPUs that are connected only through the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here, unanswered
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.topo import Pair, Topo
from ddpdoctor.facts.versions import numbers
from ddpdoctor.findings import Certainty, Evidence, Finding, Severity
from ddpdoctor.rules import cause

SYSTEM = 50
FIXED_DRIVER = (535,)
"""From this branch on NVIDIA's driver reports no peer access between these cards."""
GEFORCE = re.compile(r"\bGeForce RTX [45]0\d\d")


def _pairs(topo: Topo) -> list[Pair]:
    """The pairs of responding GPUs that no NVLink connects."""
    alive = {g.index for g in topo.all_gpus()}
    if len(alive) < 2:
        not_here("only one GPU")
    return [p for p in topo.unlinked_pairs() if {p.a, p.b} <= alive]


@cause(
    "TOPO003",
    "peer-access-unsupported",
    Severity.ERROR,
    yields_to=("ENV064",),
    signatures=(
        r"(?:CUDA|[Cc]uda)(?: failure| error|Error)[^\n]{0,300}peer access is not supported",
        r"(?:^|['\"`(]|[^:] |[^r]: )peer access is not supported",
        r"Cuda failure 217\b",
    ),
)
def peer_access_unsupported(topo: Topo, environ: Environ) -> Iterator[Finding]:
    """NCCL uses peer access between GPUs that do not support it.

    ## Why it matters
    NCCL fails with `Cuda failure 217 'peer access is not supported between these two devices'`, then `unhandled cuda error`. The
    GPUs have no P2P (cards without it, a virtual machine, mixed models, one visible GPU per rank), but a setting or an NCCL
    version requests it.

    ## Fix
    Set NCCL_P2P_DISABLE=1 for the job and unset NCCL_IGNORE_DISABLED_P2P; if each task gets one GPU, make all GPUs of the node
    visible to all of its tasks.

    ## Example
    In the log:

        NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'

    On all nodes, before the launch command:

        # before
        export NCCL_IGNORE_DISABLED_P2P=2
        # after
        unset NCCL_IGNORE_DISABLED_P2P
        export NCCL_P2P_DISABLE=1

    ## Source
    NCCL src/graph/paths.cc: NCCL_IGNORE_DISABLED_P2P=2 skips NVML's answer; nvmlDeviceGetP2PStatus of every pair.
    Confirmed in https://github.com/dmlc/xgboost/issues/11242 (NCCL_P2P_DISABLE=1, or driver 570).
    """
    if (environ.settings.get("NCCL_IGNORE_DISABLED_P2P") or "").strip() != "2":
        return
    refused = [p for p in _pairs(topo) if p.read not in (None, "OK", "U")]
    if refused and environ.settings.get("NCCL_P2P_DISABLE") != "1":
        first = refused[0]
        yield Finding(
            "NCCL_IGNORE_DISABLED_P2P=2 forces peer access between "
            f"GPU {first.a} and GPU {first.b}, which do not support it (NVML: {first.read})",
            evidence=(Evidence("topo.pairs", f"{first.a}-{first.b}: {first.read}", "OK"),),
            fix_command="unset NCCL_IGNORE_DISABLED_P2P",
        )


@cause("TOPO004", "peer-access-none", Severity.NOTE)
def peer_access_none(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """No pair of GPUs has peer access.

    ## Why it matters
    NCCL copies between the GPUs through host memory (/dev/shm). That is normal on GeForce cards; on data-center cards
    it means that ACS, the IOMMU, a vGPU or a registry key of the driver blocks peer access.

    ## Fix
    Do nothing on GeForce cards. On data-center cards, check ACS, the IOMMU, virtualization and the driver's registry
    keys.

    ## Example
    ddpdoctor's message:

        none of 6 GPU pairs has peer access (NVML: CNS); NCCL copies through host memory

    On that node:

        nvidia-smi topo -p2p r
        ddpdoctor gpus

    ## Source
    nvmlDeviceGetP2PStatus, read, for every pair.
    """
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    pairs = [p for p in _pairs(topo) if not {p.a, p.b} & divided]
    if len(pairs) < len(topo.pairs):
        return  # some GPUs are connected by NVLink, or divided by MIG (GPU015), which has no peer access
    known = [p for p in pairs if p.read is not None]
    if not known:
        unanswered("NVML reported no peer access status")
    if all(p.read != "OK" for p in known):
        statuses = ", ".join(sorted({p.read or "" for p in known}))
        yield Finding(
            f"none of {len(known)} GPU pairs has peer access (NVML: {statuses}); NCCL copies through host memory",
            evidence=(Evidence("topo.pairs", statuses, "OK"),),
        )


@cause("TOPO024", "gpu-pair-crosses-sockets", Severity.NOTE)
def gpu_pair_crosses_sockets(topo: Topo) -> Iterator[Finding]:
    """All GPUs are connected only through the link between the CPU sockets.

    ## Why it matters
    Every transfer between them crosses the sockets, for which NCCL uses shared memory. This is slower, but not an error.

    ## Fix
    Use two GPUs on one socket, if the machine has other GPUs or slots.

    ## Example
    `nvidia-smi topo -m` on that node:

                GPU0    GPU1
        GPU0     X      SYS
        GPU1    SYS      X

    On a node where GPU 0 and GPU 1 share a socket, and GPU 4 is on the other one:

        # before
        CUDA_VISIBLE_DEVICES=0,4 torchrun --nproc-per-node 2 train.py
        # after
        CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py

    ## Source
    nvmlDeviceGetTopologyCommonAncestor returns SYSTEM (50) for every pair.
    """
    pairs = _pairs(topo)
    if not pairs or len(pairs) < len(topo.pairs):
        return
    nodes = {g.pci_numa_node if g.pci_numa_node is not None else g.numa_affinity for g in topo.all_gpus()}
    if nodes != {None} and len(nodes) == 1:
        return  # one NUMA node: what NVML calls SYS is not the link between sockets, as in many virtual machines
    if all(p.level == SYSTEM for p in pairs):
        first = pairs[0]
        yield Finding(
            f"GPU {first.a} and GPU {first.b} are connected only through the CPU sockets (SYS)",
            evidence=(Evidence("topo.pairs", "SYS", "PIX, PXB, PHB or NODE"),),
        )


@cause(
    "TOPO005",
    "consumer-gpu-peer-access",
    Severity.WARNING,
    signatures=(r"Using RTX \d+ series doesn't support",),
)
def consumer_gpu_peer_access(topo: Topo, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """GeForce 40 and 50 series cards report peer access, which NVIDIA does not support on them.

    ## Why it matters
    With some drivers of 2023, copies between the cards hang or return wrong values. Later ones do not report peer access, unless
    they were patched to support it; then it may work. accelerate refuses to start:
    `Using RTX 4000 series doesn't support faster communication`.

    ## Fix
    Set NCCL_P2P_DISABLE=1 for the job, or install a driver that does not report peer access on these cards.

    ## Example
    In the log:

        NotImplementedError: Using RTX 4000 series doesn't support faster communication broadband via P2P or IB.

    On all nodes:

        # before
        torchrun --nproc-per-node 2 train.py
        # after
        NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 2 train.py

    ## Source
    nvmlDeviceGetP2PStatus returns OK; NVIDIA supports no peer access on these cards.
    """
    names = {g.index: g.name or "" for g in topo.all_gpus()}
    if not any(GEFORCE.search(name) for name in names.values()):
        not_here("no GeForce card of the 40 or 50 series")
    if environ.get("NCCL_P2P_DISABLE") == "1":
        return
    claimed = [p for p in _pairs(topo) if p.read == "OK" and all(GEFORCE.search(names[i]) for i in (p.a, p.b))]
    if not claimed:
        return
    first = claimed[0]
    major = numbers(gpu.driver_version or "")[:1] if gpu is not None else ()
    if major >= FIXED_DRIVER:
        yield Finding(
            f"GPU {first.a} and GPU {first.b} ({names[first.a]}) report peer access: the driver is patched",
            evidence=(Evidence("topo.pairs", "OK", "CNS or NS"),),
            severity=Severity.NOTE,
            certainty=Certainty.LIKELY,
            fix="Run `ddpdoctor probe` once, which verifies the values that the GPUs exchange; if they are wrong, set "
            "NCCL_P2P_DISABLE=1.",
        )
        return
    yield Finding(
        f"GPU {first.a} and GPU {first.b} ({names[first.a]}) report peer access that does not work",
        evidence=(Evidence("topo.pairs", "OK", "CNS or NS"),),
        fix_command="export NCCL_P2P_DISABLE=1",
    )
