"""GPU005: one device, two ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.node_findings import about, named, only_met
from ddpdoctor.rules.observation_findings import observed


@cause(
    "GPU005",
    "duplicate-gpu",
    Severity.ERROR,
    signatures=(r"Duplicate GPU detected", r"Multiple Ranks are using the same GPU"),
)
def duplicate_gpu(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two ranks of the job use the same GPU.

    ## Why it matters
    NCCL refuses: `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device`, newer versions say `Multiple Ranks are
    using the same GPU`. With Gloo both ranks share the memory and the time of one device and nobody says so.

    ## Fix
    Call torch.cuda.set_device(LOCAL_RANK) before anything else touches CUDA, start as many ranks as the node has GPUs, and
    do not give every rank the same single CUDA_VISIBLE_DEVICES.
    """
    if nodes is not None:
        yield from _met(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    yield from observed(probe.seen(Kind.DUPLICATE_GPU), expected="a GPU for each rank")


def _met(nodes: Nodes) -> Iterator[Finding]:
    """Nodes (containers of one machine, tasks that see all GPUs) whose ranks would take the same device."""
    users: dict[str, list[Node]] = {}
    for node in nodes.nodes:
        for uuid in node.gpu_uuids[: node.nproc or len(node.gpu_uuids)]:
            users.setdefault(uuid, []).append(node)
    shared = {uuid: found for uuid, found in users.items() if len(found) > 1 and not uuid.startswith("MIG-")}
    for uuid, found in list(shared.items())[:1]:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        yield about(
            found,
            f"{named(found)} would use the same GPU {uuid}{more}: expected a GPU for each rank",
            "nodes.gpu_uuids",
            uuid,
            "a GPU for each rank",
            is_blamed=False,
        )
