"""LAUNCH075, LAUNCH087: GPUs and scripts that differ between the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Nodes, split
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import differs

__all__ = ["script_differs_across_nodes", "uneven_gpus_per_node"]


@cause("LAUNCH075", "uneven-gpus-per-node", Severity.ERROR, scope=CauseScope.FACTS_OF_NODES)
def uneven_gpus_per_node(nodes: Nodes) -> Iterator[Finding]:
    """The nodes have different numbers of GPUs, or start different numbers of ranks.

    ## Why it matters
    Launchers that compute a rank as node_rank times GPUs per node (accelerate, mp.spawn scripts, deepspeed) skip
    ranks or use one twice, and all ranks wait. torchrun accepts different numbers, but a node may have lost a GPU.

    ## Fix
    Repair the node, or leave it out.

    Or use the same `--nproc-per-node` on every node.

    ## Example
        error[LAUNCH075]: the number of GPUs per node differs between nodes (node-1: 8; node-2: 7)

        # before
        accelerate launch --num_machines=2 --num_processes=16 --machine_rank=1 --main_process_ip=HOST0 train.py

        # after
        accelerate launch --num_machines=2 --num_processes=14 --machine_rank=1 --main_process_ip=HOST0 train.py
    """
    is_uniform = any(node.uniform for node in nodes.nodes)
    ranks = split(nodes.nodes, lambda node: str(node.nproc) if node.nproc and node.uniform else None)
    if ranks is not None:
        yield differs(ranks, "the number of ranks per node", "nproc")
        return
    gpus = split(nodes.nodes, lambda node: node.traits.get("gpu.count"))
    if gpus is not None:
        severity = None if is_uniform else Severity.WARNING
        yield differs(gpus, "the number of GPUs per node", "gpu.count", severity=severity)


@cause("LAUNCH087", "script-differs-across-nodes", Severity.WARNING)
def script_differs_across_nodes(nodes: Nodes) -> Iterator[Finding]:
    """The training script is not the same file on every node.

    ## Why it matters
    A copy that was edited on one node runs other collectives than the other nodes: the job hangs or trains wrongly.
    No message says that the code differs.

    ## Fix
    Use one shared copy, or copy the script to all nodes again.

    `sha256sum` shows which node differs.

    ## Example
        warning[LAUNCH087]: the text of train.py differs between nodes (node-1: 4be1…; node-2: 90c3…)

        # before
        ssh node-2 torchrun --nnodes=2 --node-rank=1 --master-addr=node-1 train.py

        # after
        scp train.py node-2:
        ssh node-2 torchrun --nnodes=2 --node-rank=1 --master-addr=node-1 train.py
    """
    hashes = split(nodes.nodes, lambda node: node.script_hash or None)
    if hashes is not None:
        name = next((node.script for node in nodes.nodes if node.script), "the script")
        yield differs(hashes, f"the text of {name}", "script_hash")
