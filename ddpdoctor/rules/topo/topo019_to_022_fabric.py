"""The registration of GPUs with the NVLink fabric (Hopper and later)."""

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
"""Two bits a subject from this bit on: 1 is true, 2 is false, 0 is not told."""
WRONG = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
"""What four bits from bit 8 on say of the configuration; 1 is that nothing is wrong with it."""
ASKED_FOR = ((12, "no partition assigned"), (14, "fabric manager disconnected"))
"""Two bits a subject, 2 is the trouble: told by a summary that is not healthy only, for a node may do without."""


def _fabrics(topo: Topo) -> list[tuple[GpuNode, Fabric]]:
    found = [(g, g.fabric) for g in topo.all_gpus() if g.fabric is not None and g.fabric.state]
    if not found:
        not_here("no GPU here registers with an NVLink fabric")
    return found


@cause("TOPO019", "fabric-not-ready", Severity.ERROR)
def fabric_not_ready(topo: Topo) -> Iterator[Finding]:
    """The GPUs are not registered with the NVLink fabric yet.

    ## Why it matters
    Until they are, CUDA says "Error 802: system not yet initialized" and torch.cuda.is_available() is False. Some
    seconds after boot that is normal; later it is not.

    ## Fix
    Wait a minute; then restart the fabric manager, in exactly the driver's version.

    ## Source
    nvmlDeviceGetGpuFabricInfoV: state 1 or 2.
    """
    waiting = [(g, f) for g, f in _fabrics(topo) if f.state in STATES]
    if waiting:
        indices = ", ".join(str(g.index) for g, _ in waiting)
        state = STATES[waiting[0][1].state]
        place = Where(gpu=waiting[0][0].index) if len(waiting) == 1 else Where()
        yield Finding(
            f"the fabric registration of GPU {indices} is {state}; expected completed",
            evidence=tuple(Evidence(f"topo.gpus[{g.index}].fabric.state", str(f.state), "3") for g, f in waiting),
            fix_command="systemctl restart nvidia-fabricmanager",
            where=place,
        )


@cause("TOPO020", "fabric-failed", Severity.ERROR)
def fabric_failed(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A GPU could not join the NVLink fabric.

    ## Why it matters
    The registration ended with an error, or NVLink is refused between all GPUs although their links are up: CUDA may start, but
    the peers over NVLink are missing.

    ## Fix
    Bring fabric manager and driver to one version, check the partition, and reset the GPU.

    ## Source
    nvmlDeviceGetGpuFabricInfoV: state completed, status not 0. nvmlDeviceGetP2PStatus, NVLink, NS on every pair behind
    NVSwitches: seen in the field on H100 whose fabric was not set up.
    """
    gpus = topo.all_gpus()
    for each in gpus:
        fabric = each.fabric
        if fabric is not None and fabric.state == COMPLETED and fabric.status:
            yield Finding(
                f"GPU {each.index} ended its fabric registration with NVML code {fabric.status}; expected 0",
                evidence=(Evidence(f"topo.gpus[{each.index}].fabric.status", str(fabric.status), "0"),),
                where=Where(gpu=each.index),
            )
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    switched = {g.index for g in gpus if g.is_switched and g.links_to_switch} - divided
    words = [p.nvlink for p in topo.pairs if {p.a, p.b} <= switched and p.nvlink not in (None, "U")]
    if words and "OK" not in words and all(g.fabric is None or g.fabric.is_up for g in gpus):
        yield Finding(
            f"NVLink is refused ({words[0]}) on all of {len(words)} pairs of GPUs although their links to the NVSwitches are up; "
            "expected OK",
            evidence=(Evidence("topo.pairs", f"nvlink: {words[0]}", "OK"),),
            fix_command="systemctl restart nvidia-fabricmanager",
        )
    if not any(g.fabric is not None and g.fabric.state for g in gpus) and not switched:
        not_here("no GPU here is behind an NVSwitch")


@cause("TOPO021", "fabric-unhealthy", Severity.ERROR)
def fabric_unhealthy(topo: Topo) -> Iterator[Finding]:
    """The NVLink fabric of a GPU reports a degraded state.

    ## Why it matters
    Bandwidth is lost or routes are missing, and only the fabric's health mask says so.

    ## Fix
    Drain the node and read the fabric manager's log.

    ## Source
    nvmlDeviceGetGpuFabricInfoV: healthMask (its bits for trouble, and a configuration that is wrong), healthSummary (2 unhealthy,
    3 limited).
    """
    for gpu, fabric in _fabrics(topo):
        mask = fabric.health_mask or 0
        faults, is_ill = _faults(mask), fabric.health_summary in (2, 3)
        if fabric.state != COMPLETED or not (faults or is_ill):
            continue
        words = faults + [word for bit, word in ASKED_FOR if is_ill and mask >> bit & 3 == 2]
        is_limited = not faults and fabric.health_summary == 3
        yield Finding(
            f"GPU {gpu.index} reports an unhealthy fabric ({', '.join(words) or 'health summary'}); expected healthy",
            evidence=(Evidence(f"topo.gpus[{gpu.index}].fabric.health_mask", f"{mask:#x}", "no problem bit"),),
            where=Where(gpu=gpu.index),
            severity=Severity.WARNING if is_limited else None,
        )


def _faults(mask: int) -> list[str]:
    words = [word for bit, word in MASK if mask >> bit & 3 == 1]
    wrong = mask >> 8 & 0xF
    return words + ([f"configuration: {WRONG.get(wrong, f'code {wrong}')}"] if wrong > 1 else [])


@cause("TOPO022", "fabric-clique-mixed", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def fabric_clique_mixed(topo: Topo | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The GPUs of one node, or of the nodes of one job, belong to different NVLink domains.

    ## Why it matters
    NCCL takes the network between GPUs that sit in one rack, or in one tray.

    ## Fix
    Correct the partition, so that all GPUs of the job share a domain.

    ## Source
    nvmlDeviceGetGpuFabricInfoV: clusterUuid and cliqueId.
    """
    if nodes is not None:
        found = split(nodes.nodes, lambda node: node.traits.get("topo.fabric"))
        if found is not None:
            yield differs(found, "the NVLink domain", "topo.fabric")
        return
    if topo is None:
        not_here("no GPU was looked at")
    domains: dict[tuple[str | None, int | None], list[int]] = {}
    for gpu, fabric in _fabrics(topo):
        if fabric.state == COMPLETED:
            domains.setdefault((fabric.cluster_uuid, fabric.clique), []).append(gpu.index)
    if len(domains) > 1:
        words = "; ".join(f"GPU {', '.join(map(str, at))}: clique {clique}" for (_, clique), at in domains.items())
        few, *_, many = sorted(domains.values(), key=len)
        yield Finding(
            f"the GPUs belong to {len(domains)} NVLink domains ({words}); expected one",
            evidence=(Evidence("topo.gpus", words, "one domain"),),
            where=Where(gpu=few[0] if len(domains) == 2 and len(few) == 1 < len(many) else None),
        )
