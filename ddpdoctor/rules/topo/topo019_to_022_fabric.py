"""TOPO019 to TOPO022: the registration of GPUs with the NVLink fabric (Hopper and later)."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.nodes import Nodes, split
from ddpdoctor.facts.topo import Fabric, GpuNode, Topo
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import differs

STATES = {1: "not started", 2: "in progress"}
COMPLETED = 3
MASK = (
    (0, "degraded bandwidth"),
    (2, "route recovery"),
    (4, "unhealthy route"),
    (6, "access timeout recovery"),
)
"""Two bits per subject, starting at this bit: 1 is true, 2 is false, 0 is not reported."""
WRONG = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
"""The meaning of the four configuration bits from bit 8 on; 1 means that the configuration is correct."""
IF_UNHEALTHY = ((12, "no partition assigned"), (14, "fabric manager disconnected"))
"""Two bits per subject, 2 is the fault: used only if the summary is not healthy, because a node may not need them."""


def _fabrics(topo: Topo) -> list[tuple[GpuNode, Fabric]]:
    registering = [(g, g.fabric) for g in topo.all_gpus() if g.fabric is not None and g.fabric.state]
    if not registering:
        not_here("no GPU registers with an NVLink fabric")
    return registering


@cause("TOPO019", "fabric-not-ready", Severity.ERROR)
def fabric_not_ready(topo: Topo) -> Iterator[Finding]:
    """The GPUs are not yet registered with the NVLink fabric.

    ## Why it matters
    Until they are, torch.cuda.is_available() is False and CUDA fails: `Error 802: system not yet initialized`. This is normal
    for some seconds after boot, but not later.

    ## Fix
    Wait a minute; then restart the fabric manager as root on that node. Its version must be exactly the driver's.

    ## Example
    In the log:

        RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized

    On that node, as root:

        nvidia-smi -q | grep -A 3 Fabric
        systemctl restart nvidia-fabricmanager

    ## Source
    nvmlDeviceGetGpuFabricInfoV: state 1 or 2.
    """
    waiting = [(g, f) for g, f in _fabrics(topo) if f.state in STATES]
    if waiting:
        indices = ", ".join(str(g.index) for g, _ in waiting)
        state = STATES[waiting[0][1].state]
        place = Where(gpu=waiting[0][0].index) if len(waiting) == 1 else Where()
        yield Finding(
            f"GPU {indices}: registration with the NVLink fabric is {state}",
            evidence=tuple(Evidence(f"topo.gpus[{g.index}].fabric.state", str(f.state), "3") for g, f in waiting),
            fix_command="systemctl restart nvidia-fabricmanager",
            where=place,
        )


@cause("TOPO020", "fabric-failed", Severity.ERROR)
def fabric_failed(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A GPU could not join the NVLink fabric.

    ## Why it matters
    The registration failed, or NVLink is refused between all GPUs although their links are up. CUDA may start, but the other GPUs
    cannot be reached over NVLink.

    ## Fix
    Install the fabric manager in the driver's version on that node, check the partition, and reset the GPU.

    ## Example
    ddpdoctor's message:

        GPU 2 could not register with the NVLink fabric (NVML code 999)

    On that node, as root:

        nv-fabricmanager --version
        nvidia-smi --query-gpu=driver_version --format=csv
        systemctl restart nvidia-fabricmanager

    ## Source
    nvmlDeviceGetGpuFabricInfoV: state completed, status not 0. nvmlDeviceGetP2PStatus, NVLink, NS on every pair that NVSwitches
    connect: seen in the field on H100 whose fabric was not set up.
    """
    gpus = topo.all_gpus()
    for node in gpus:
        fabric = node.fabric
        if fabric is not None and fabric.state == COMPLETED and fabric.status:
            yield Finding(
                f"GPU {node.index} could not register with the NVLink fabric (NVML code {fabric.status})",
                evidence=(Evidence(f"topo.gpus[{node.index}].fabric.status", str(fabric.status), "0"),),
                where=Where(gpu=node.index),
            )
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    switched = {g.index for g in gpus if g.is_switched and g.links_to_switch} - divided
    statuses = [p.nvlink for p in topo.pairs if {p.a, p.b} <= switched and p.nvlink not in (None, "U")]
    if statuses and "OK" not in statuses and all(g.fabric is None or g.fabric.is_up for g in gpus):
        pairs = "the only GPU pair" if len(statuses) == 1 else f"all {len(statuses)} GPU pairs"
        yield Finding(
            f"NVLink is refused ({statuses[0]}) for {pairs} although the NVSwitch links are up",
            evidence=(Evidence("topo.pairs", f"nvlink: {statuses[0]}", "OK"),),
            fix_command="systemctl restart nvidia-fabricmanager",
        )
    if not any(g.fabric is not None and g.fabric.state for g in gpus) and not switched:
        not_here("no GPU is connected to an NVSwitch")


@cause("TOPO021", "fabric-unhealthy", Severity.ERROR)
def fabric_unhealthy(topo: Topo) -> Iterator[Finding]:
    """The NVLink fabric of a GPU is in a degraded state.

    ## Why it matters
    Bandwidth is lost or routes are missing, and only the fabric's health mask shows it.

    ## Fix
    Drain the node and read its fabric manager's log (/var/log/fabricmanager.log).

    ## Example
    ddpdoctor's message:

        GPU 0 reports an unhealthy NVLink fabric (degraded bandwidth)

    On that node, as root:

        nvidia-smi -q | grep -A 12 Fabric
        tail -n 50 /var/log/fabricmanager.log

    ## Source
    nvmlDeviceGetGpuFabricInfoV: healthMask (its fault bits, and a wrong configuration), healthSummary (2 unhealthy, 3 limited).
    """
    for gpu, fabric in _fabrics(topo):
        mask = fabric.health_mask or 0
        faults, is_unhealthy = _faults(mask), fabric.health_summary in (2, 3)
        if fabric.state != COMPLETED or not (faults or is_unhealthy):
            continue
        problems = faults + [problem for bit, problem in IF_UNHEALTHY if is_unhealthy and mask >> bit & 3 == 2]
        is_limited = not faults and fabric.health_summary == 3
        yield Finding(
            f"GPU {gpu.index} reports an unhealthy NVLink fabric ({', '.join(problems) or 'health summary'})",
            evidence=(Evidence(f"topo.gpus[{gpu.index}].fabric.health_mask", f"{mask:#x}", "no problem bit"),),
            where=Where(gpu=gpu.index),
            severity=Severity.WARNING if is_limited else None,
        )


def _faults(mask: int) -> list[str]:
    faults = [fault for bit, fault in MASK if mask >> bit & 3 == 1]
    wrong = mask >> 8 & 0xF
    return faults + ([f"configuration: {WRONG.get(wrong, f'code {wrong}')}"] if wrong > 1 else [])


@cause("TOPO022", "fabric-clique-mixed", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def fabric_clique_mixed(topo: Topo | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The GPUs of the job belong to different NVLink domains.

    ## Why it matters
    NCCL uses the network between GPUs of one rack, or even of one tray.

    ## Fix
    Correct the partition so that all GPUs of the job are in one NVLink domain.

    ## Example
    ddpdoctor's message:

        the GPUs belong to 2 NVLink domains (GPU 0: clique 1; GPU 1: clique 2)

    On each node:

        nvidia-smi -q | grep -E "ClusterUUID|CliqueId"

    ## Source
    nvmlDeviceGetGpuFabricInfoV: clusterUuid and cliqueId.
    """
    if nodes is not None:
        groups = split(nodes.nodes, lambda node: node.traits.get("topo.fabric"))
        if groups is not None:
            yield differs(groups, "the NVLink domain", "topo.fabric")
        return
    if topo is None:
        not_here("no GPU was examined")
    domains: dict[tuple[str | None, int | None], list[int]] = {}
    for gpu, fabric in _fabrics(topo):
        if fabric.state == COMPLETED:
            domains.setdefault((fabric.cluster_uuid, fabric.clique), []).append(gpu.index)
    if len(domains) > 1:
        cliques = "; ".join(
            f"GPU {', '.join(map(str, indices))}: clique {clique}" for (_, clique), indices in domains.items()
        )
        few, *_, many = sorted(domains.values(), key=len)
        yield Finding(
            f"the GPUs belong to {len(domains)} NVLink domains ({cliques})",
            evidence=(Evidence("topo.gpus", cliques, "one domain"),),
            where=Where(gpu=few[0] if len(domains) == 2 and len(few) == 1 < len(many) else None),
        )
