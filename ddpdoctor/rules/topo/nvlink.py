"""NVLinks that are down, or that peer access may not use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.topo import GpuNode, Topo
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule


@rule("TOPO011", "nvlink-down", Severity.ERROR)
def nvlink_down(topo: Topo) -> Iterator[Finding]:
    """A GPU has fewer active NVLinks than its neighbours of the same model.

    ## Why it matters
    One dead link makes NCCL's rings uneven: init fails with P2P or NVLS errors, or every collective is slow without a
    word.

    ## Fix
    Reset all GPUs of the board together; when the link stays down, reseat or replace the GPU.

    ## Source
    nvmlDeviceGetNvLinkState for every link of field 91.
    """
    gpus = [g for g in topo.all_gpus() if g.links]
    if not gpus:
        not_here("no GPU here has NVLinks")
    for gpu in gpus:
        expected = _expected(gpu, gpus)
        if gpu.active_links < expected:
            down = ", ".join(str(link.index) for link in gpu.links if not link.is_active)
            yield Finding(
                f"GPU {gpu.index} has {gpu.active_links} active NVLinks (down: {down}); expected {expected}",
                evidence=(Evidence(f"topo.gpus[{gpu.index}].links", str(gpu.active_links), str(expected)),),
                where=Where(gpu=gpu.index),
            )


def _expected(gpu: GpuNode, gpus: list[GpuNode]) -> int:
    """What most GPUs of this model have; all links where any runs to a switch. Bridges may be missing on purpose."""
    counts = Counter(g.active_links for g in gpus if g.name == gpu.name)
    usual, times = max(counts.items(), key=lambda item: (item[1], item[0]))
    if any(link.remote == "switch" for g in gpus if g.name == gpu.name for link in g.links):
        return max(len(g.links) for g in gpus if g.name == gpu.name)
    return usual if times > len(gpus) / 2 else 0


@rule(
    "TOPO006",
    "nvlink-peer-access-disabled",
    Severity.ERROR,
    signatures=(r"P2P is disabled between NVLINK connected GPUs",),
)
def nvlink_peer_access_disabled(topo: Topo) -> Iterator[Finding]:
    """Peer access is disabled between GPUs that NVLink connects.

    ## Why it matters
    "P2P is disabled between NVLINK connected GPUs": NCCL refuses to start rather than be slow.

    ## Fix
    Check the fabric manager, MIG, the container's capabilities and the driver's registry keys.

    ## Source
    nvmlDeviceGetP2PStatus, read and write; NCCL graph/paths.cc.
    """
    topo.all_gpus()
    linked = list(topo.linked_pairs())
    if not linked:
        not_here("no two GPUs are connected by NVLink")
    bad = [
        (pair, word)
        for pair, _ in linked
        for word in [
            next((w for w in (pair.read, pair.write, pair.read_back, pair.write_back) if w not in (None, "OK")), "")
        ]
        if word
    ]
    if bad:
        pair, word = bad[0]
        others = f" and {len(bad) - 1} more pairs" if len(bad) > 1 else ""
        yield Finding(
            f"P2P between GPU {pair.a} and GPU {pair.b}{others} is {word} although NVLink connects them; expected OK",
            evidence=(Evidence("topo.pairs", f"{pair.a}-{pair.b}: {word}", "OK"),),
        )
