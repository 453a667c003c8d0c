"""LAUNCH542, LAUNCH543: deepspeed's options for several nodes, compared with its host file."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark, count_of, mark_of

__all__: list[str] = []


def _runners(submission: Submission) -> Iterator[Task]:
    """Every deepspeed whose words can be read, once per statement."""
    for step in submission.steps:
        task = step.tasks[0]
        if step.is_certain and task.layer.launcher is LauncherKind.DEEPSPEED and not task.layer.is_garbled:
            yield task


@cause("LAUNCH542", "deepspeed-nodes-not-in-hostfile", Severity.ERROR)
def deepspeed_nodes_not_in_hostfile(submission: Submission) -> Iterator[Finding]:
    """deepspeed --num_nodes is larger than the number of hosts in the hostfile.

    ## Why it matters
    deepspeed uses the hosts that it finds, without a message: the job runs with a smaller world than intended.

    ## Fix
    Add the missing hosts to the hostfile, or lower `--num_nodes`.

    Each host is one line, `HOST slots=GPUS`.

    ## Example
        error[LAUNCH542]: --num_nodes=4, but the hostfile has 2 hosts

        # before
        deepspeed --hostfile=hostfile --num_nodes=4 train.py

        # after
        deepspeed --hostfile=hostfile --num_nodes=2 train.py

    ## Source
    deepspeed/launcher/runner.py: `main` takes the first num_nodes of the hosts.
    """
    for task in _runners(submission):
        given = task.layer.given("num_nodes")
        if given is None or task.slots is None or not (given.value or "").isdigit():
            continue
        if int(given.value or "") > len(task.slots):
            text = f"--num_nodes={given.value}, but the hostfile has {count_of(len(task.slots), 'host')}"
            mark = mark_of(task, given.value_word)
            size = str(len(task.slots))
            yield at_mark(submission, mark, text, seen=given.value or "", expected=size, label=f"use {size}")


@cause("LAUNCH543", "deepspeed-node-rank-missing", Severity.ERROR)
def deepspeed_node_rank_missing(submission: Submission) -> Iterator[Finding]:
    """deepspeed --no_ssh starts one node of several without --node_rank.

    ## Why it matters
    deepspeed fails with `AssertionError: Launching training without ssh, but --node_rank is not set correctly.`

    ## Fix
    Give each node its rank, with `--node_rank`.

    Under srun, let the shell of the task expand it: `srun bash -c 'deepspeed --no_ssh --node_rank=$SLURM_NODEID …'`.

    ## Example
        AssertionError: Launching training without ssh, but --node_rank is not set correctly.

        # before
        deepspeed --hostfile=hostfile --no_ssh --master_addr=HOST0 train.py

        # after
        deepspeed --hostfile=hostfile --no_ssh --node_rank=0 --master_addr=HOST0 train.py

    ## Source
    deepspeed/launcher/runner.py: `main` asserts 0 <= node_rank < number of hosts.
    """
    for task in _runners(submission):
        given = task.layer.given("no_ssh")
        if given is None or task.layer.given("node_rank") is not None or task.layer.reading.is_open:
            continue
        mark = mark_of(task, given.word)
        label = "add --node_rank"
        yield at_mark(submission, mark, "--no_ssh without --node_rank", seen="--no_ssh", expected=label, label=label)
