"""LAUNCH540, LAUNCH541: job steps that do not run at the same time, or that the end of the batch script kills."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.submission import Step, Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of

__all__: list[str] = []


@cause("LAUNCH540", "nodes-started-one-after-another", Severity.ERROR, explains=("LAUNCH510",), repairs=("background",))
def nodes_started_one_after_another(submission: Submission) -> Iterator[Finding]:
    """A loop starts the launcher of each node only after the previous one has ended.

    ## Why it matters
    The first torchrun waits for nodes that the loop starts only after it has ended. After 10 to 30 minutes it fails
    with a rendezvous timeout, and the next one waits alone.

    ## Fix
    Put `&` at the end of the command, and `wait` after the loop.

    ## Example
        error[LAUNCH540]: torchrun on node-0 waits for 2 nodes, but the loop starts the next one later

        # before
        for i in 0 1; do
          srun -N1 -n1 -w ${nodes[$i]} torchrun --nnodes=2 --node-rank=$i --master-addr=$head train.py
        done

        # after
        for i in 0 1; do
          srun -N1 -n1 -w ${nodes[$i]} torchrun --nnodes=2 --node-rank=$i --master-addr=$head train.py &
        done
        wait
    """
    passes: dict[int, list[tuple[Step, Task]]] = {}
    for step, task, agent in agents_of(submission):
        expected = agent.plan.nnodes
        if not step.is_background and len(step.hosts) == 1 and expected is not None and expected[0] > 1:
            passes.setdefault(step.source, []).append((step, task))
    for found in passes.values():
        hosts = {host for step, _ in found for host in step.hosts}
        steps = {id(step) for step, _ in found}
        if len(steps) < 2 or len(hosts) < 2:
            continue
        step, task = found[0]
        mark = mark_of(task, None) if task.launcher is None else task.launcher.at
        text = f"torchrun on {step.hosts[0]} waits for the nodes that this loop starts after it"
        yield at_mark(submission, mark, text, seen="in the foreground", expected="&", label="add & at its end")


@cause("LAUNCH541", "batch-script-ends-before-steps", Severity.ERROR, repairs=("wait",))
def batch_script_ends_before_steps(submission: Submission) -> Iterator[Finding]:
    """The batch script starts job steps in the background and ends, which ends the job.

    ## Why it matters
    Slurm ends a job when its batch script ends, and kills the steps that still run: `STEP CANCELLED`, often within
    the first second, with an empty output.

    ## Fix
    Put `wait` at the end of the script.

    ## Example
        error[LAUNCH541]: the script ends while its background steps still run

        # before
        srun -N1 -n1 torchrun --nnodes=2 --node-rank=0 --master-addr=$head train.py &

        # after
        srun -N1 -n1 torchrun --nnodes=2 --node-rank=0 --master-addr=$head train.py &
        wait
    """
    if submission.is_awaited or submission.grant.scheduler not in ("Slurm", "PBS", "LSF", "Flux", "Grid Engine"):
        return
    step = submission.steps[-1]
    task = step.tasks[0]
    if not step.is_certain:
        return
    mark = mark_of(task, None) if task.launcher is None else task.launcher.at
    text = "the batch script ends while its background processes still run"
    yield at_mark(submission, mark, text, seen="no wait", expected="wait", label="add wait at the end")
