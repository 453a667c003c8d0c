"""TOPO006, TOPO011: NVLinks that are down, or over which peer access is disabled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.nvlink_models import nvlink_model
from ddpdoctor.facts.topo import GpuNode, Pair, Topo
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


@cause("TOPO011", "nvlink-down", Severity.ERROR)
def nvlink_down(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A GPU has fewer active NVLinks than its model or the other GPUs.

    ## Why it matters
    One dead link makes NCCL's rings uneven. init_process_group fails with P2P or NVLS errors, or every collective is slow and
    nothing is printed.

    ## Fix
    Reset all GPUs of the board together, as root on that node: `nvidia-smi --gpu-reset`. If the link stays down, reseat
    or replace the GPU.

    ## Example
    ddpdoctor's message:

        GPU 3 has 17 of 18 NVLinks active (down: 5)

    On that node, as root:

        nvidia-smi nvlink --status -i 3
        nvidia-smi --gpu-reset

    ## Source
    nvmlDeviceGetNvLinkState for every link of field 91, compared first with the other GPUs of the same model, then with the
    published number of links. Bridges between cards may be missing on purpose, and a virtual machine has only the links to the
    GPUs that it was given.
    """
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    gpus = [g for g in topo.all_gpus() if g.link_count is not None or g.links]
    if not any(g.links or (g.link_count == 0 and nvlink_model(g.name)) for g in gpus):
        not_here("no GPU has NVLinks")
    is_bare = gpu is not None and not any(d.virtualization_mode for d in gpu.devices)
    for node in gpus:
        same_model = [g for g in gpus if g.name == node.name]
        expected = _expected(node, same_model, topo, is_bare)
        if node.active_links + node.untold_links >= expected or node.index in divided:
            continue
        down = ", ".join(str(link.index) for link in node.links if not link.is_active)
        down = "all" if down and not node.active_links else down
        # All links that NVML lists are up; only the published number is higher.
        is_short = not down
        yield Finding(
            f"GPU {node.index} has {node.active_links} of {expected} NVLinks active (down: {down or 'not listed'})",
            evidence=(Evidence(f"topo.gpus[{node.index}].links", str(node.active_links), str(expected)),),
            where=Where(gpu=node.index),
            severity=Severity.WARNING if is_short else None,
        )


def _expected(gpu: GpuNode, same_model: list[GpuNode], topo: Topo, is_bare: bool) -> int:
    """How many links of a GPU should be active: from the other GPUs of its model, then from the published number."""
    model = nvlink_model(gpu.name)
    most = max(len(g.links) for g in same_model)
    if not is_bare and len(same_model) == 1 and not gpu.active_links:
        return 0  # a virtual machine with one GPU: its host has disabled the links
    if any(g.is_switched for g in same_model):
        return max(most, model.links) if model is not None and not model.bridge_links and is_bare else most
    if model is not None and model.bridge_links:
        return _bridged(gpu, topo, model.bridge_links)
    has_siblings = len(same_model) > 1 or gpu.index > 0
    if model is not None and is_bare and has_siblings and not (model.may_be_alone and most == 0):
        return max(most, model.links)
    usual, times = max(Counter(g.active_links for g in same_model).items(), key=lambda item: (item[1], item[0]))
    return max(usual if 2 * times > len(same_model) else 0, _links_from_peers(gpu, topo))


def _bridged(gpu: GpuNode, topo: Topo, links: int) -> int:
    """A bridge has all of its links or none, and both of its ends have the same number."""
    return max(-(-gpu.active_links // links) * links, _links_from_peers(gpu, topo))


def _links_from_peers(gpu: GpuNode, topo: Topo) -> int:
    """The number of active links of other GPUs that end at this one."""
    return sum(link.is_active and link.remote_bus_id == gpu.bus_id for g in topo.gpus for link in g.links if gpu.bus_id)


@cause(
    "TOPO006",
    "nvlink-peer-access-disabled",
    Severity.ERROR,
    signatures=(r"P2P is disabled between NVLINK connected GPUs",),
)
def nvlink_peer_access_disabled(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """Peer access is disabled between GPUs that NVLink connects.

    ## Why it matters
    NCCL refuses to start rather than run slowly: `P2P is disabled between NVLINK connected GPUs`.

    ## Fix
    Check the fabric manager, MIG, the container's capabilities and the driver's registry keys on that node.

    ## Example
    In the log:

        NCCL WARN P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case given their connectivity

    On that node:

        systemctl status nvidia-fabricmanager
        nvidia-smi topo -p2p r
        nvidia-smi --query-gpu=index,mig.mode.current --format=csv

    ## Source
    nvmlDeviceGetP2PStatus, read and write; NCCL graph/paths.cc. Not reported while the fabric is not up (TOPO019, TOPO020), and
    not for GPUs that MIG divides (GPU015).
    """
    ready = {g.index for g in topo.all_gpus() if g.fabric is None or g.fabric.is_up}
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    linked = [pair for pair, _ in topo.linked_pairs()]
    if not linked:
        not_here("no two GPUs are connected by NVLink")
    bad = [p for p in linked if _refusal(p) and {p.a, p.b} <= ready - divided]
    if bad:
        pair, status = bad[0], _refusal(bad[0])
        others = f" (and {len(bad) - 1} more pair{'' if len(bad) == 2 else 's'})" if len(bad) > 1 else ""
        # A GPU that is in every such pair is the one to look at.
        common = {pair.a, pair.b}.intersection(*({p.a, p.b} for p in bad))
        yield Finding(
            f"GPU {pair.a} and GPU {pair.b}{others}: P2P is disabled ({status}) although NVLink connects them",
            evidence=(Evidence("topo.pairs", f"{pair.a}-{pair.b}: {status}", "OK"),),
            where=Where(gpu=common.pop() if len(common) == 1 else None),
        )


def _refusal(pair: Pair) -> str:
    """NVML's status of reading or writing over this pair if it is not OK; "" if it is OK or unknown."""
    statuses = (pair.read, pair.write, pair.read_back, pair.write_back)
    return next((status for status in statuses if status not in (None, "OK", "U")), "") or ""
