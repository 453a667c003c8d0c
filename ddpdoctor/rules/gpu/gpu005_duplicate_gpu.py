"""GPU005: two ranks on one GPU."""

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
    signatures=(
        r"Duplicate GPU detected",
        r"Multiple Ranks are using the same GPU",
        r"multiple ranks using the same NVML device",
    ),
)
def duplicate_gpu(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two ranks of the job use the same GPU.

    ## Why it matters
    NCCL refuses to start: `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device`, in newer versions
    `Multiple Ranks are using the same GPU`. With Gloo there is no message: both ranks share the memory and time of one GPU.

    ## Fix
    Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything else uses CUDA, start at most one rank per GPU,
    and do not set the same single CUDA_VISIBLE_DEVICES for all ranks.

    ## Example
    In the log:

        NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000

    In the script:

        # before
        dist.init_process_group("nccl")
        model = model.cuda()
        # after
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        model = model.cuda()

    ## Source
    Confirmed in https://github.com/Peterande/D-FINE/issues/289 (a fixed device in the script was removed).
    """
    if nodes is not None:
        yield from _shared_by_nodes(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    yield from observed(probe.seen(Kind.DUPLICATE_GPU), expected="one GPU per rank")


def _shared_by_nodes(nodes: Nodes) -> Iterator[Finding]:
    """Nodes (containers of one machine, tasks that see all GPUs) whose ranks would use the same GPU."""
    users: dict[str, list[Node]] = {}
    for node in nodes.nodes:
        for uuid in node.gpu_uuids[: node.nproc or len(node.gpu_uuids)]:
            users.setdefault(uuid, []).append(node)
    shared = {uuid: sharing for uuid, sharing in users.items() if len(sharing) > 1 and not uuid.startswith("MIG-")}
    for uuid, sharing in list(shared.items())[:1]:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        yield about(
            sharing,
            f"{named(sharing)} would use the same GPU {uuid}{more}",
            "nodes.gpu_uuids",
            uuid,
            "one GPU per rank",
            is_blamed=False,
        )
