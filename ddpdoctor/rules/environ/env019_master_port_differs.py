"""ENV019: the nodes have different master ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.launch.hand_started_ranks import differing_variable
from ddpdoctor.rules.node_findings import only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause("ENV019", "master-port-differs", Severity.ERROR, scope=CauseScope.LINES_OF_NODES, repairs=("same-value", "wrap"))
def master_port_differs(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The nodes were given different master ports.

    ## Why it matters
    The node of rank 0 listens on one port, and the others connect to another. A refused connection is retried
    silently until `The client socket has timed out`, which looks like a firewall.

    ## Fix
    Give every node the same --master-port, or the same port in --rdzv-endpoint.

    ## Example

        The client socket has timed out after 600000ms while trying to connect to (node0, 29501).

        # before
        torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 train.py
        torchrun --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29501 train.py

        # after, on node 1
        torchrun --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500 train.py
    """
    if launch is not None and job is not None:
        yield from master.ports_differ(launch, job)
    if nodes is not None:
        yield from environments_of_nodes.ports_differ(nodes)
    only_met(nodes, launch)


@master_port_differs.look
def ports(launch: Launch) -> Iterator[Finding]:
    """Launch lines of one job with different ports."""
    yield from differing_variable(launch, "MASTER_PORT")


@master_port_differs.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_PORT_DIFFERS)
