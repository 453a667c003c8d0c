"""ENV018: MASTER_ADDR names another machine than rank 0's."""

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
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.launch.pointing import agents, point
from ddpdoctor.rules.launch.submitted import at_mark, mark_of
from ddpdoctor.rules.observation_findings import observed


@cause(
    "ENV018",
    "master-addr-not-rank-zero",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    explains=("NET012",),
    repairs=("address", "wrap", "escape"),
)
def master_addr_not_rank_zero(
    probe: Probe | None = None, launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """MASTER_ADDR does not name the machine that has rank 0.

    ## Why it matters
    Rank 0 opens the store on its own machine and then connects to another one, where nothing listens. A refused
    connection is retried silently until `The client socket has timed out after …ms`.

    ## Fix
    Set MASTER_ADDR on every node to an address of the machine that has rank 0, or start rank 0 on the machine that
    MASTER_ADDR names.

    ## Example

        node 0 (node0) has rank 0, but MASTER_ADDR=node1 is node 1 (node1)

        # before
        torchrun --nnodes 2 --node-rank 0 --master-addr node1 train.py    # on node0
        # after
        torchrun --nnodes 2 --node-rank 0 --master-addr node0 train.py    # on node0
    """
    if probe is None and launch is None and nodes is None:
        not_here("no launch line and no probe")
    if launch is not None and job is not None:
        yield from master.rank_zero_on_other_host(launch, job)
    if nodes is not None:
        yield from environments_of_nodes.elsewhere(nodes)
    if probe is not None:
        yield from observed(probe.seen(Kind.MASTER_ELSEWHERE), expected="an address of rank 0's own machine")


@master_addr_not_rank_zero.look
def other_pod(launch: Launch) -> Iterator[Finding]:
    """The master address is a pod of the StatefulSet other than the first."""
    for line, layer, plan in agents(launch):
        pod, given = line.pod, layer.given("master_addr")
        if pod is None or pod.operator is not Operator.STATEFULSET or given is None or not is_known(given.value):
            continue
        match = re.fullmatch(rf"{re.escape(pod.name or '')}-(\d+)(\..*)?", given.value or "")
        if pod.name and match and int(match[1]) > 0 and plan.backend == "static":
            text = f"{given.value} is pod {match[1]}, but {pod.name}-0 has rank 0"
            expected, label = f"{pod.name}-0{match[2] or ''}", f"use {pod.name}-0"
            yield point(launch, line, given.value_word, text, expected, None, label=label)


@master_addr_not_rank_zero.look
def batch_node(submission: Submission) -> Iterator[Finding]:
    """jsrun starts the ranks on the compute nodes, but the address is that of the node which runs the batch script."""
    batch = submission.grant.batch_host
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        plan = task.line.plan
        master = task.line.environ.variables.get("MASTER_ADDR") if plan is None else plan.host
        if batch and master == batch and "jsrun" in task.via and batch not in (task.host, *_hosts(task)):
            mark = task.set_at.get("MASTER_ADDR") or mark_of(task, None)
            text = "the master address is the batch node, on which jsrun starts no rank"
            fix = "Use the first compute node: the second line of `sort -u $LSB_DJOB_HOSTFILE`, without the batch node."
            label, severity = "use the first compute node", Severity.WARNING
            yield at_mark(
                submission, mark, text, seen=batch, expected=task.host, label=label, severity=severity, fix=fix
            )
            return


@master_addr_not_rank_zero.look
def host_of_the_submission(submission: Submission) -> Iterator[Finding]:
    """The master address is the host where the job was submitted: a login node, which runs no rank."""
    host = submission.grant.submit_host
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        plan = task.line.plan
        master = task.line.environ.variables.get("MASTER_ADDR") if plan is None or plan.is_rewritten else plan.host
        if not host or master != host or host in (task.host, *_hosts(task)):
            continue
        mark = task.set_at.get("MASTER_ADDR") or mark_of(task, None)
        text = "the master address is the host where the job was submitted, on which no rank runs"
        fix = _FIRST_HOST.get(submission.grant.scheduler, "Use the first host of the job.")
        yield at_mark(
            submission, mark, text, seen="the submit host", expected=task.host, label="use node 0's host", fix=fix
        )
        return


_FIRST_HOST = {
    "Slurm": 'Use `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.',
    "PBS": 'Use `$(head -n 1 "$PBS_NODEFILE")`.',
}


def _hosts(task: Task) -> tuple[str, ...]:
    return () if task.launcher is None else task.launcher.hosts
