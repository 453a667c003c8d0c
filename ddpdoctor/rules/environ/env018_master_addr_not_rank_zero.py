"""ENV018: a master address that leads to another machine than rank 0's."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.environ import told
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.observation_findings import observed


@rule("ENV018", "master-addr-not-rank-zero", Severity.ERROR)
def check(
    probe: Probe | None = None, launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """MASTER_ADDR does not lead to the machine that holds rank 0.

    ## Why it matters
    Rank 0 opens the store on its own machine and then connects to another one, where nobody listens; a refused
    connection is retried in silence until `The client socket has timed out after …ms`.

    ## Fix
    Set MASTER_ADDR to an address of the machine that holds rank 0, on every node; or start rank 0 on the other machine.
    """
    if probe is None and launch is None and nodes is None:
        not_here("no launch line and no probe")
    if launch is not None and job is not None:
        yield from master.elsewhere(launch, job)
    if nodes is not None:
        yield from told.elsewhere(nodes)
    if probe is not None:
        yield from observed(probe.seen(Kind.MASTER_ELSEWHERE), expected="an address of rank 0's own machine")
