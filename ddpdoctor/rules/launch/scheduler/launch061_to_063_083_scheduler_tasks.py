"""LAUNCH061 to 063, 083: tasks that a scheduler starts or does not start, and their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape, is_known
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.task_counts import NODES, nodes, number, option, tasks, tasks_per_node
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, base_name, point, remove, replace_word, shown
from ddpdoctor.rules.launch.scheduler.granted import SCHEDULED
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause("LAUNCH061", "batch-step-without-srun", Severity.ERROR)
def batch_step_without_srun(launch: Launch) -> Iterator[Finding]:
    """The batch script starts the job without srun, so only one task runs.

    ## Why it matters
    The body of a batch script runs once, on the first node, with SLURM_PROCID=0 and SLURM_NTASKS=n: a script that
    reads them becomes rank 0 of n and waits (`1/4 clients joined`). A torchrun waits for nodes on which none is
    started.

    ## Fix
    Put `srun` before the command.

    ## Example
        error[LAUNCH061]: torchrun runs only on the first of 2 nodes

        # before
        #SBATCH --nodes=2
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        #SBATCH --nodes=2
        srun --ntasks-per-node=1 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line in launch.lines:
        layer = line.program
        if (
            line.batch is None
            or line.task_starter is not None
            or layer is None
            or layer.launcher is LauncherKind.CONTAINER
        ):
            continue
        count, _ = tasks(line)
        per_node = number(option(line.batch, ("--ntasks-per-node",)))
        hosts = number(option(line.batch, NODES)) or 1
        total = count or (per_node or 1) * hosts
        if line.agent is not None:
            plan = line.plan
            if plan is None or hosts < 2 or plan.nnodes is None or plan.nnodes[0] < 2 or line.is_background:
                continue
            text = f"torchrun runs only on the first of {hosts} nodes"
        elif layer.launcher is LauncherKind.PYTHON and total > 1 and _reads_scheduler(line):
            text = f"python runs once, but the batch job has {total} tasks"
        else:
            continue
        edits = [SpanEdit(line.argv[0].start, line.argv[0].start, "srun ")] if line.argv else None
        if line.agent is not None and edits is not None and _needs_one_task(line):
            edits = [SpanEdit(line.argv[0].start, line.argv[0].start, "srun --ntasks-per-node=1 ")]
        yield point(launch, line, layer.program, text, "srun", edits, label="add srun before the command")


def _needs_one_task(line: LaunchLine) -> bool:
    return number(option(line.batch, ("--ntasks-per-node",))) != 1


def _reads_scheduler(line: LaunchLine) -> bool:
    script = line.script
    if script is None:
        return False
    lightning = {"lightning", "pytorch_lightning"} & set(script.frameworks)
    return bool(lightning) or any(SCHEDULED.match(name) for name in script.reads)


@cause("LAUNCH062", "rank-exported-before-srun", Severity.ERROR, repairs=("wrap",))
def rank_exported_before_srun(launch: Launch) -> Iterator[Finding]:
    """RANK is set before srun or mpirun, so every task inherits it.

    ## Why it matters
    All tasks get the same RANK. They wait for the other ranks, or the second one fails with `EADDRINUSE`.

    ## Fix
    Set it inside the task, with `bash -c '…'`.

    ## Example
        error[LAUNCH062]: RANK=0 before srun is inherited by every task

        # before
        RANK=0 srun --ntasks=8 python train.py

        # after
        srun --ntasks=8 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'
    """
    for line in launch.lines:
        outer, inner = line.task_starter, line.program
        if outer is None or inner is None or outer is inner or line.starter is not None:
            continue
        if outer.launcher is not LauncherKind.SRUN:
            continue
        total, _ = tasks(line)
        per_node, _ = tasks_per_node(line)
        if (total == 1) or (total is None and per_node == 1 and nodes(line) == 1) or _keeps_none(outer):
            continue
        words = [v.word for v in outer.variables if v.name in ("RANK", "LOCAL_RANK")]
        later = {v.name for v in inner.variables if all(v.word is not w.word for w in outer.variables)}
        exported_before = "RANK" in line.environ.variables and is_known(line.environ.variables["RANK"])
        if {"RANK", "LOCAL_RANK"} & later or not (words or exported_before):
            continue
        if not words and "RANK" in (line.script.sets if line.script is not None else ()):
            continue
        value = line.environ.variables.get("RANK", "")
        edits = list(remove(line, *words)) + _wrapped(line, inner) if words else None
        assignment = shown(words[0]) if words else f"RANK={value}"
        text = f"{assignment} before {outer.name} is inherited by every task"
        word, expected = words[0] if words else outer.program, "RANK=$SLURM_PROCID in the task"
        yield point(launch, line, word, text, expected, edits, label="set it inside the task")


def _keeps_none(outer: Layer) -> bool:
    given = option(outer, ("--export",))
    return given is not None and (given.value or "").upper().startswith("NONE")


def _wrapped(line: LaunchLine, inner: Layer) -> list[SpanEdit]:
    """Let a shell in the task start the script with its rank."""
    if any(layer.is_shell_text for layer in line.layers):
        return [
            SpanEdit(inner.program.start, inner.program.start, escape("RANK=$SLURM_PROCID ", inner.program.context))
        ]
    return _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID")


@cause("LAUNCH063", "task-without-rank-variables", Severity.ERROR, repairs=("wrap",))
def task_without_rank_variables(launch: Launch) -> Iterator[Finding]:
    """srun or mpirun starts the ranks, but their variables are not mapped to RANK and WORLD_SIZE.

    ## Why it matters
    torch does not read SLURM_*, OMPI_* or PMI_*. Every task fails with `environment variable RANK expected, but not
    set`.

    ## Fix
    Set RANK, LOCAL_RANK and WORLD_SIZE inside the task.

    Or run one torchrun per node.

    ## Example
        ValueError: environment variable RANK expected, but not set

        # before
        srun --ntasks=8 python train.py

        # after
        srun --ntasks=8 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train.py'
    """
    for line in launch.lines:
        outer, inner, script = line.task_starter, line.program, line.script
        if outer is None or inner is None or script is None or inner.launcher is not LauncherKind.PYTHON:
            continue
        if not script.initialises or any(SCHEDULED.match(name) for name in (*script.reads, *script.sets)):
            continue
        if "RANK" in line.environ.variables or "RANK" in script.sets:
            continue
        edits = None
        if outer.launcher is LauncherKind.SRUN and not any(layer.is_shell_text for layer in line.layers):
            edits = _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS")
        text = f"{outer.name} does not set RANK, but {base_name(script.path)} reads it"
        expected, label = "RANK and WORLD_SIZE from the scheduler's variables", "map RANK inside the task"
        yield point(launch, line, inner.program, text, expected, edits, label=label)


def _mapped(line: LaunchLine, inner: Layer, ranks: str) -> list[SpanEdit]:
    words = [*inner.own, *([inner.reading.script] if inner.reading.script else []), *inner.reading.arguments]
    end = max(w.end for w in words)
    body = line.source[inner.program.start : end]
    return [SpanEdit(inner.program.start, end, f"bash -c '{escape(f'{ranks} {body}', chr(39))}'")]


@cause("LAUNCH083", "slurm-kill-on-bad-exit-off", Severity.WARNING)
def slurm_kill_on_bad_exit_off(launch: Launch) -> Iterator[Finding]:
    """srun keeps the other tasks running when one task fails.

    ## Why it matters
    Without --kill-on-bad-exit the other ranks wait in a collective for the failed one, until a timeout of torch or
    the end of the allocation.

    ## Fix
    Add `--kill-on-bad-exit=1` to srun.

    ## Example
        note[LAUNCH083]: srun keeps the other tasks running when one fails

        # before
        srun --ntasks=8 python train.py

        # after
        srun --kill-on-bad-exit=1 --ntasks=8 python train.py
    """
    for line in launch.lines:
        srun, inner = line.layer(LauncherKind.SRUN), line.program
        if srun is None or inner is None or inner.launcher is LauncherKind.OTHER:
            continue
        given = next((g for g in srun.reading.given if g.flag.startswith(("-K", "--kill-on-bad-exit"))), None)
        if "SLURM_KILL_BAD_EXIT" in line.environ.variables:
            continue
        total, _ = tasks(line)
        per_node, _ = tasks_per_node(line)
        several = (total or 0) > 1 or (per_node or 0) > 1 or (nodes(line) or 0) > 1
        text, expected = "srun keeps the other tasks running when one fails", "--kill-on-bad-exit=1"
        if given is not None and given.word.text in ("-K0", "--kill-on-bad-exit=0"):
            edits = [replace_word(given.word, expected)]
            yield point(launch, line, given.word, text, expected, edits, label=f"use {expected}")
        elif given is None and several and inner.launcher is LauncherKind.PYTHON and not srun.reading.is_open:
            edits = [after(srun.program, expected)]
            label, severity = f"add {expected}", Severity.NOTE
            yield point(launch, line, srun.program, text, expected, edits, label=label, severity=severity)


@task_without_rank_variables.look
def tasks_without_variables(log: Log) -> Iterator[Finding]:
    """Under srun or mpirun, every task lacks the variables of torch."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_under_scheduler
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import CUT_NOT_SET, NO_KEY, NOT_SET

    lines = matching_lines(log, NOT_SET + NO_KEY) or matching_lines(log, CUT_NOT_SET)
    if lines and is_under_scheduler(log):
        title = "srun or mpirun started the tasks, but RANK and WORLD_SIZE are not set"
        yield finding_of(log, lines, title, blames_speaker=False)


@batch_step_without_srun.look
def only_the_first_node(submission: Submission) -> Iterator[Finding]:
    """The body of a batch script starts a launcher that waits for other nodes, and nothing starts one there."""
    grant = submission.grant
    everywhere = {host for step in submission.steps for host in step.hosts}
    if (grant.nodes or 1) < 2 or len(everywhere) > 1 or not submission.steps:
        return
    starter = _STARTERS.get(grant.scheduler)
    for step, task, agent in agents_of(submission):
        expected = agent.plan.nnodes
        if task.via or step.is_background or expected is None or expected[0] < 2 or starter is None:
            continue
        if not {"-N", "--nodes", "-l", "-w", "--nodelist"} & grant.places.keys() and grant.scheduler == "Slurm":
            continue
        name = "torchrun" if agent.layer.launcher is not LauncherKind.ACCELERATE else "accelerate"
        text = f"{name} runs only on the first of {grant.nodes} nodes"
        label, fix = f"start it with {starter}", f"Start it on every node, with {starter}."
        yield at_mark(submission, mark_of(task, None), text, seen=name, expected=starter, label=label, fix=fix)
        return


_STARTERS = {
    "Slurm": "srun",
    "PBS": "mpiexec",
    "LSF": "blaunch or jsrun",
    "Flux": "flux run",
    "Grid Engine": "mpirun or qrsh -inherit",
}
"""What starts a program on the other hosts of a job."""
