"""ENV018: a master address that leads to another machine than rank 0's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.launch.pointing import agents, point
from ddpdoctor.rules.observation_findings import observed


@cause("ENV018", "master-addr-not-rank-zero", Severity.ERROR, scope=CauseScope.LINES_OF_NODES)
def master_addr_not_rank_zero(
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
        yield from environments_of_nodes.elsewhere(nodes)
    if probe is not None:
        yield from observed(probe.seen(Kind.MASTER_ELSEWHERE), expected="an address of rank 0's own machine")


@master_addr_not_rank_zero.look
def other_pod(launch: Launch) -> Iterator[Finding]:
    """The master's address is a pod of the set that is not the first."""
    for line, layer, plan in agents(launch):
        pod, given = line.pod, layer.given("master_addr")
        if pod is None or pod.operator is not Operator.STATEFULSET or given is None or not is_known(given.value):
            continue
        match = re.fullmatch(rf"{re.escape(pod.name or '')}-(\d+)(\..*)?", given.value or "")
        if pod.name and match and int(match[1]) > 0 and plan.backend == "static":
            text = f"{given.value} is pod {match[1]}: expected {pod.name}-0, which has rank 0"
            yield point(launch, line, given.value_word, text, f"{pod.name}-0{match[2] or ''}", None)
