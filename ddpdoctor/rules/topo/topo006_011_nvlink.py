"""NVLinks that are down, or that peer access may not use."""

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
    """A GPU has fewer active NVLinks than its model and its neighbours.

    ## Why it matters
    One dead link makes NCCL's rings uneven: init fails with P2P or NVLS errors, or every collective is slow without a
    word.

    ## Fix
    Reset all GPUs of the board together; when the link stays down, reseat or replace the GPU.

    ## Source
    nvmlDeviceGetNvLinkState for every link of field 91, held against the neighbours of the same model first and against the
    published number of links second. Bridges between cards may be missing on purpose, and a virtual machine has only the links
    to the GPUs that it was given.
    """
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    gpus = [g for g in topo.all_gpus() if g.link_count is not None or g.links]
    if not any(g.links or (g.link_count == 0 and nvlink_model(g.name)) for g in gpus):
        not_here("no GPU here has NVLinks")
    is_bare = gpu is not None and not any(d.virtualization_mode for d in gpu.devices)
    for each in gpus:
        alike = [g for g in gpus if g.name == each.name]
        expected = _expected(each, alike, topo, is_bare)
        if each.active_links + each.untold_links >= expected or each.index in divided:
            continue
        down = ", ".join(str(link.index) for link in each.links if not link.is_active)
        # What NVML lists is all up, and only the published number says that there should be more.
        is_short = not down
        yield Finding(
            f"GPU {each.index} has {each.active_links} active NVLinks (down: {down or 'not listed'}); expected {expected}",
            evidence=(Evidence(f"topo.gpus[{each.index}].links", str(each.active_links), str(expected)),),
            where=Where(gpu=each.index),
            severity=Severity.WARNING if is_short else None,
        )


def _expected(gpu: GpuNode, alike: list[GpuNode], topo: Topo, is_bare: bool) -> int:
    """How many links of a GPU should be active, from its neighbours of the same model, then from the published number."""
    model = nvlink_model(gpu.name)
    most = max(len(g.links) for g in alike)
    if not is_bare and len(alike) == 1 and not gpu.active_links:
        return 0  # a virtual machine of one GPU: its host has switched the links off
    if any(g.is_switched for g in alike):
        return max(most, model.links) if model is not None and not model.bridge_links and is_bare else most
    if model is not None and model.bridge_links:
        return _bridged(gpu, topo, model.bridge_links)
    if model is not None and is_bare and len(alike) > 1 and not (model.may_be_alone and most == 0):
        return max(most, model.links)
    usual, times = max(Counter(g.active_links for g in alike).items(), key=lambda item: (item[1], item[0]))
    return max(usual if 2 * times > len(alike) else 0, _answered(gpu, topo))


def _bridged(gpu: GpuNode, topo: Topo, links: int) -> int:
    """A bridge brings all of its links or none, and both of its ends count the same."""
    return max(-(-gpu.active_links // links) * links, _answered(gpu, topo))


def _answered(gpu: GpuNode, topo: Topo) -> int:
    """The active links of other GPUs that end at this one."""
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
    "P2P is disabled between NVLINK connected GPUs": NCCL refuses to start rather than be slow.

    ## Fix
    Check the fabric manager, MIG, the container's capabilities and the driver's registry keys.

    ## Source
    nvmlDeviceGetP2PStatus, read and write; NCCL graph/paths.cc. While the fabric is not up (TOPO019, TOPO020) that is no wonder,
    and MIG divides GPUs (GPU015).
    """
    ready = {g.index for g in topo.all_gpus() if g.fabric is None or g.fabric.is_up}
    divided = {d.index for d in gpu.devices if d.mig_mode} if gpu is not None else set()
    linked = [pair for pair, _ in topo.linked_pairs()]
    if not linked:
        not_here("no two GPUs are connected by NVLink")
    bad = [p for p in linked if _refusal(p) and {p.a, p.b} <= ready - divided]
    if bad:
        pair, word = bad[0], _refusal(bad[0])
        others = f" and {len(bad) - 1} more pairs" if len(bad) > 1 else ""
        # A GPU that stands in every such pair is the one to look at.
        common = {pair.a, pair.b}.intersection(*({p.a, p.b} for p in bad))
        yield Finding(
            f"P2P between GPU {pair.a} and GPU {pair.b}{others} is {word} although NVLink connects them; expected OK",
            evidence=(Evidence("topo.pairs", f"{pair.a}-{pair.b}: {word}", "OK"),),
            where=Where(gpu=common.pop() if len(common) == 1 else None),
        )


def _refusal(pair: Pair) -> str:
    """What NVML says of reading or writing over this pair when it is not OK, "" when it is or when it does not know."""
    words = (pair.read, pair.write, pair.read_back, pair.write_back)
    return next((word for word in words if word not in (None, "OK", "U")), "") or ""
