"""LAUNCH620: nodes that the scheduler allocates, and on which the batch script starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import shell_of
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of

_STARTERS = {
    "Slurm": "srun",
    "PBS": "mpiexec",
    "LSF": "blaunch or jsrun",
    "Flux": "flux run",
    "Grid Engine": "mpirun or qrsh -inherit",
}
_COUNTS = {"-N", "--nodes", "-l", "-nnodes", "-n"}
"""Options of a batch script that ask for a number of nodes."""
_OTHER_NODES = re.compile(
    r"\b(?:srun|ssh|pdsh|clush|mpirun|mpiexec(?:\.hydra)?|blaunch|jsrun|pbsdsh|pbs_tmrsh|qrsh|parallel|ray|dask\S*|flux)\b"
)
"""Programs that reach other nodes: what they start there may be the work of those nodes."""


@cause("LAUNCH620", "allocated-nodes-idle", Severity.WARNING)
def allocated_nodes_idle(submission: Submission) -> Iterator[Finding]:
    """The job allocates several nodes, and the launcher trains on the first one only.

    ## Why it matters
    The body of a batch script runs on the first node. A torchrun without `--nnodes` trains there alone and exits with 0,
    while the other nodes are allocated and idle.

    ## Fix
    Start one launcher per node with `--nnodes`.

    Or allocate one node.

    ## Example
        warning[LAUNCH620]: torchrun trains on 1 of 2 allocated nodes

        # before
        #SBATCH --nodes=2
        torchrun --nproc-per-node=4 train.py

        # after
        #SBATCH --nodes=2
        HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29400 train.py

    ## Source
    sbatch(1): "Slurm runs a single copy of the batch script on the first node in the set of allocated nodes."
    """
    shell, grant = shell_of(submission), submission.grant
    starter = _STARTERS.get(grant.scheduler)
    if starter is None or (grant.nodes or 1) < 2 or grant.parts or not _COUNTS & grant.places.keys():
        return
    everywhere = {host for step in submission.steps for host in step.hosts}
    if not shell.is_complete or len(everywhere) != 1 or not all(step.is_certain for step in submission.steps):
        return
    commands = (row for row in submission.text.splitlines() if not row.lstrip().startswith("#"))
    if any(task.via for task in submission.tasks) or any(_OTHER_NODES.search(row) for row in commands):
        return
    for _, task, agent in agents_of(submission):
        if agent.plan.nnodes is not None and agent.plan.nnodes != (1, 1):
            return  # it waits for the others: batch-step-without-srun
        name = task.layer.name
        text = f"{name} trains on 1 of {grant.nodes} allocated nodes"
        label, fix = (
            f"{name} starts on the first node only",
            f"Start one launcher per node with {starter} and `--nnodes`.",
        )
        yield at_mark(
            submission, mark_of(task, None), text, seen="1 node", expected=f"{grant.nodes} nodes", label=label, fix=fix
        )
        return
