"""ENV019: nodes that knock at different ports."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.environ import told
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.node_findings import only_met


@rule("ENV019", "master-port-differs", Severity.ERROR)
def check(launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None) -> Iterator[Finding]:
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
        yield from told.ports_differ(nodes)
    only_met(nodes, launch)
