"""LAUNCH059, LAUNCH060: variables of the scheduler that the wrong shell expands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.job import Agent
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.findings import Finding, Severity, Speaker
from ddpdoctor.launch.task_counts import nodes
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, revalue
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, launchers_of, mark_of

__all__ = ["EARLY"]

EARLY = re.compile(r"(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")


@cause(
    "LAUNCH059",
    "node-rank-expanded-too-early",
    Severity.ERROR,
    explains=("LAUNCH036",),
    repairs=("escape", "node-rank", "wrap"),
)
def node_rank_expanded_too_early(launch: Launch) -> Iterator[Finding]:
    """The batch script's shell expands the node rank, so it is 0 on every node.

    ## Why it matters
    `$SLURM_NODEID` is expanded before srun runs, where it is 0, so every node becomes node rank 0. On different hosts
    they wait for each other for 15 minutes; on one host the second fails with `EADDRINUSE`.

    ## Fix
    Expand it inside the task, with `bash -c '…'`.

    Use single quotes. Or use c10d, which needs no node rank.

    ## Example
        error[LAUNCH059]: $SLURM_NODEID is 0 on every node

        # before
        srun --nodes=2 torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=HOST0 train.py

        # after
        srun --nodes=2 bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=HOST0 train.py'
    """
    for line, layer, plan in agents(launch):
        srun = line.layer(LauncherKind.SRUN)
        given = layer.given("node_rank")
        if srun is None or given is None or plan.backend == "c10d" or "'" in given.value_word.context:
            continue
        match = EARLY.search(given.value_word.raw)
        if match is None or _task_variable(line, srun):
            continue
        text, expected = f"${match[1]} is 0 on every node", "bash -c '…' in single quotes"
        label = "expanded before srun starts"
        yield point(launch, line, given.value_word, text, expected, _in_shell(line, layer), label=label)


def _task_variable(line: LaunchLine, srun: Layer) -> bool:
    """The line is already inside a task: srun is not outside of it."""
    return not any(each is srun for each in line.layers)


def _in_shell(line: LaunchLine, layer: Layer) -> list[SpanEdit] | None:
    """Put the torchrun part into `bash -c '…'`, or replace the double quotes around it by single ones."""
    shell = next((each for each in line.layers if each.is_shell_text), None)
    if shell is not None:
        text = shell.own[-1]
        if not text.raw.startswith('"') or "'" in text.raw:
            return None
        return [SpanEdit(text.start, text.start + 1, "'"), SpanEdit(text.end - 1, text.end, "'")]
    first = layer.program
    last = layer.reading.arguments[-1] if layer.reading.arguments else layer.reading.script or layer.own[-1]
    body = line.source[first.start : last.end]
    return [SpanEdit(first.start, last.end, f"bash -c '{escape(body, chr(39))}'")]


@node_rank_expanded_too_early.look
def ranks_of_the_batch_step(submission: Submission) -> Iterator[Finding]:
    """A node rank that was made of a variable of the process is the same on all hosts: another shell expanded it."""
    ranks: dict[int, set[int | None]] = {}
    found: dict[int, tuple[Task, Agent]] = {}
    for step, task, agent in agents_of(submission):
        if task.launcher is not None and task.launcher.name in ("srun", "mpirun", "mpiexec") and len(step.hosts) > 1:
            ranks.setdefault(id(step), set()).add(agent.plan.node_rank)
            found.setdefault(id(step), (task, agent))
    for step_id, values in ranks.items():
        task, agent = found[step_id]
        word = agent.plan.settings["node_rank"].word
        if len(values) > 1 or None in values or word is None or agent.plan.backend != "static":
            continue
        at = next((at for at, each in enumerate(task.line.argv) if each.start <= word.start < max(each.end, 1)), None)
        if at not in task.of_process:
            continue
        assert task.launcher is not None
        text = f"the node rank is expanded before {task.launcher.name} starts: {values.pop()} on every node"
        mark, expected = mark_of(task, word), "bash -c '…' in single quotes"
        yield at_mark(submission, mark, text, seen="expanded once", expected=expected, label="expand it in the task")


@cause(
    "LAUNCH060",
    "scheduler-variable-unset",
    Severity.ERROR,
    explains=("LAUNCH501",),
    yields_to=("ENV010",),
    speaker=Speaker.TORCH,
    signatures=(r"invalid literal for int\(\) with base 10: ''",),
    repairs=("wrap", "escape", "export-list"),
)
def scheduler_variable_unset(launch: Launch) -> Iterator[Finding]:
    """The number or rank of nodes is empty, because its variable is not set here.

    ## Why it matters
    torchrun fails with `invalid literal for int() with base 10: ''`. SLURM_NNODES exists inside the allocation or the
    task only, and JOB_COMPLETION_INDEX only in pods of an Indexed Job.

    ## Fix
    Start the line with sbatch or salloc.

    Or let `bash -c '…'` under srun expand the variable.

    ## Example
        ValueError: invalid literal for int() with base 10: ''

        # before
        torchrun --nnodes= --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line in launch.lines:
        layer, plan = line.agent, line.plan
        if layer is None or plan is None or layer.typos:
            continue
        for dest in ("nnodes", "node_rank"):
            given = layer.given(dest)
            if given is None or given.value != "":
                continue
            count = nodes(line)
            edits = [revalue(given, str(count))] if dest == "nnodes" and count else None
            if edits is None and dest == "nnodes" and line.layer(LauncherKind.SRUN) is None:
                edits = [revalue(given, "1")]
            text = f"{given.written} is empty"
            label = "its variable is not set here"
            yield point(launch, line, given.value_word, text, "a number", edits, label=label)


@scheduler_variable_unset.look
def variables_of_tasks_outside(submission: Submission) -> Iterator[Finding]:
    """The job file expands a variable where nothing has set it."""
    told = set()
    for task, layer in launchers_of(submission):
        for dest in ("nnodes", "node_rank"):
            given = layer.given(dest)
            is_of_operator = task.line.pod is not None and task.line.pod.operator is Operator.PYTORCHJOB
            if given is None or given.value != "" or given.word in told or is_of_operator:
                continue
            told.add(given.word)
            text = f"{given.written} is empty: its variable is not set here"
            mark, label = mark_of(task, given.value_word), "its variable is not set here"
            fix = _fix_in_pod(submission, task)
            yield at_mark(submission, mark, text, seen="", expected="a number", label=label, fix=fix)
            return


@scheduler_variable_unset.look
def variables_of_ranks_outside(submission: Submission) -> Iterator[Finding]:
    """mpirun or srun gives its ranks an empty RANK, because the shell around it expands a variable that only tasks have."""
    for step in submission.steps:
        for task in step.tasks if step.is_certain and not step.job.agents else ():
            name = next((name for name in _OF_RANKS if task.line.environ.variables.get(name) == ""), None)
            if name is None or name not in task.set_at or task.launcher is None:
                continue
            text = f"{name} is empty in every process of {task.launcher.name}: the shell around it expands the variable"
            label = "set only in the tasks"
            fix = "Set it inside the task: `bash -c 'RANK=$OMPI_COMM_WORLD_RANK …'`, in single quotes."
            yield at_mark(submission, task.set_at[name], text, seen="", expected="a number", label=label, fix=fix)
            return


_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def _fix_in_pod(submission: Submission, task: Task) -> str:
    """What sets the number of a pod in Kubernetes; "" for the file of another scheduler."""
    if task.line.pod is None and not submission.pod_sets:
        return ""
    return (
        "Add `completionMode: Indexed` to the Job's spec and use $JOB_COMPLETION_INDEX: only pods of an Indexed Job have it. "
        "In a StatefulSet use ${HOSTNAME##*-}; Slurm's variables do not exist in pods."
    )
