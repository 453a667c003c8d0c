"""ENV019: nodes that knock at different ports."""

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


@cause("ENV019", "master-port-differs", Severity.ERROR, scope=CauseScope.LINES_OF_NODES)
def master_port_differs(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The nodes were given different master ports.

    ## Why it matters
    The node of rank 0 listens on one port, the others knock at another. A refused connection is tried again in silence until the
    time-out, and it looks like a firewall.

    ## Fix
    Give every node the same --master-port, or the same port in --rdzv-endpoint.
    """
    if launch is not None and job is not None:
        yield from master.ports_differ(launch, job)
    if nodes is not None:
        yield from environments_of_nodes.ports_differ(nodes)
    only_met(nodes, launch)


@master_port_differs.look
def ports(launch: Launch) -> Iterator[Finding]:
    """Lines of one job with different ports."""
    yield from differing_variable(launch, "MASTER_PORT")


@master_port_differs.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided over what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_PORT_DIFFERS)
