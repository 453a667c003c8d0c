"""ENV020: the nodes have different master addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.launch.hand_started_ranks import differing_variable
from ddpdoctor.rules.net.reachability_findings import is_elsewhere
from ddpdoctor.rules.node_findings import named, only_met, place

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "ENV020",
    "master-addr-differs",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    repairs=("address", "wrap", "escape"),
)
def master_addr_differs(
    environ: Environ | None = None, launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The nodes were given different master addresses.

    ## Why it matters
    `MASTER_ADDR=$(hostname)` inside an srun task makes each node its own master, and so does a name that /etc/hosts
    or DNS resolves differently on each node. The node of rank 0 reports `1/2 clients joined`, and every other node
    times out at its own address.

    ## Fix
    Set one address on all nodes: that of the node or pod with rank 0. Under Slurm, compute it once, before srun:
    `export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.

    ## Example

        Timed out after 601 seconds waiting for clients. 1/2 clients joined.

        # before: every task has its own
        srun bash -c 'MASTER_ADDR=$(hostname) python train.py'

        # after: computed once, in the batch script
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        srun python train.py
    """
    if nodes is not None:
        yield from _resolves_elsewhere(nodes)
        yield from environments_of_nodes.addresses_differ(nodes)
    if only_met(nodes, environ):
        return
    assert environ is not None
    if launch is not None and job is not None:
        yield from master.addresses_differ(launch, job)
    launcher, node = environ.launcher, environ.node_rank
    here, given = environ.get("SLURMD_NODENAME") or "", environ.get("MASTER_ADDR") or ""
    if launcher is None or launcher.name != "srun" or not node or not environ.is_multi_node:
        return
    if (
        not given
        or given.partition(".")[0] != here.partition(".")[0]
        or environ.integer("RANK") not in (None, environ.rank)
    ):
        return
    yield Finding(
        f"MASTER_ADDR={shorten(given)} is this node (node {node}), but rank 0 runs on node 0",
        (
            Evidence("environ.variables.MASTER_ADDR", shorten(given), "the first node of SLURM_STEP_NODELIST"),
            Evidence("environ.variables.SLURM_NODEID", str(node)),
        ),
        fix_command='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        where=Where(host=shorten(here), node_rank=node),
    )


def _resolves_elsewhere(nodes: Nodes) -> Iterator[Finding]:
    """On some nodes the same name resolves to another machine."""
    if not nodes.nodes:
        return
    host = nodes.nodes[nodes.hosted_by]
    same = [node for node in nodes.nodes if node.master_addr == host.master_addr and node.came != "main"]
    misdirected = [node for node in same if is_elsewhere(node, host) and not node.owns]  # several owners: NET012
    if misdirected:
        addresses = ", ".join(misdirected[0].master_addresses[:4])
        yield Finding(
            f"MASTER_ADDR={shorten(host.master_addr or '')} resolves to {addresses} on {named(misdirected)},"
            f" not to {host.title} ({', '.join(host.addresses[:4])})",
            tuple(
                Evidence(f"nodes[{n.title}].master_addresses", ", ".join(n.master_addresses[:4]))
                for n in misdirected[:16]
            ),
            where=place(misdirected),
        )


@master_addr_differs.look
def addresses(launch: Launch) -> Iterator[Finding]:
    """Launch lines of one job with different addresses."""
    yield from differing_variable(launch, "MASTER_ADDR")


@master_addr_differs.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_ADDR_DIFFERS)
