"""LAUNCH075, LAUNCH087: GPUs and scripts that are not the same on all nodes."""

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
    Launchers that compute a rank as node_rank times the GPUs of a node (accelerate, mp.spawn scripts, deepspeed) leave holes or
    give a rank twice, and all wait. torchrun accepts unequal numbers; a node that has lost a GPU is still worth a look.

    ## Fix
    Repair the node or leave it out, or give every node the same --nproc-per-node.
    """
    is_uniform = any(node.uniform for node in nodes.nodes)
    ranks = split(nodes.nodes, lambda node: str(node.nproc) if node.nproc and node.uniform else None)
    if ranks is not None:
        yield differs(ranks, "the number of ranks of a node", "nproc")
        return
    found = split(nodes.nodes, lambda node: node.traits.get("gpu.count"))
    if found is not None:
        yield differs(
            found, "the number of GPUs of a node", "gpu.count", severity=None if is_uniform else Severity.WARNING
        )


@cause("LAUNCH087", "script-differs-across-nodes", Severity.WARNING)
def script_differs_across_nodes(nodes: Nodes) -> Iterator[Finding]:
    """The training script is not the same file on every node.

    ## Why it matters
    A copy that was edited on one node runs other collectives than its peers: the job hangs or trains wrongly, and no message
    says that the code differs.

    ## Fix
    Use one shared copy, or synchronise the nodes' copies before the launch: sha256sum tells which one differs.
    """
    found = split(nodes.nodes, lambda node: node.script_hash or None)
    if found is not None:
        name = next((node.script for node in nodes.nodes if node.script), "the script")
        yield differs(found, f"the text of {name}", "script_hash")
