"""LAUNCH061 to 063, 083: the tasks that a scheduler starts, or that nobody starts, and their ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape, is_known
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.task_counts import NODES, nodes, number, option, tasks, tasks_per_node
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, point, remove, replace_word, shown

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

SCHEDULED = re.compile(r"SLURM_|OMPI_|PMI_|PMIX_|MV2_|JSM_|PALS_|ALPS_")


@cause("LAUNCH061", "batch-step-without-srun", Severity.ERROR)
def batch_step_without_srun(launch: Launch) -> Iterator[Finding]:
    """The batch script starts the job without srun, so that only one task exists.

    ## Why it matters
    The body of a batch script runs once, on the first node, with SLURM_PROCID=0 and SLURM_NTASKS=n: the script believes to be
    rank 0 of n and waits (`1/4 clients joined`), a torchrun waits for nodes where nobody starts one.

    ## Fix
    Put srun before the command.
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
        each = number(option(line.batch, ("--ntasks-per-node",)))
        hosts = number(option(line.batch, NODES)) or 1
        total = count or (each or 1) * hosts
        if line.agent is not None:
            plan = line.plan
            if plan is None or hosts < 2 or plan.nnodes is None or plan.nnodes[0] < 2 or line.is_background:
                continue
            told = f"{hosts} nodes, and torchrun runs on the first one only"
        elif layer.launcher is LauncherKind.PYTHON and total > 1 and _reads_scheduler(line):
            told = f"{total} tasks, and python runs once"
        else:
            continue
        edits = [SpanEdit(line.argv[0].start, line.argv[0].start, "srun ")] if line.argv else None
        if line.agent is not None and edits is not None and _needs_one_task(line):
            edits = [SpanEdit(line.argv[0].start, line.argv[0].start, "srun --ntasks-per-node=1 ")]
        yield point(launch, line, layer.program, f"the batch job has {told}: expected srun before it", "srun", edits)


def _needs_one_task(line: LaunchLine) -> bool:
    return number(option(line.batch, ("--ntasks-per-node",))) != 1


def _reads_scheduler(line: LaunchLine) -> bool:
    script = line.script
    if script is None:
        return False
    lightning = {"lightning", "pytorch_lightning"} & set(script.frameworks)
    return bool(lightning) or any(SCHEDULED.match(name) for name in script.reads)


@cause("LAUNCH062", "rank-exported-before-srun", Severity.ERROR)
def rank_exported_before_srun(launch: Launch) -> Iterator[Finding]:
    """RANK is set before srun or mpirun and inherited by every task.

    ## Why it matters
    All tasks get the same RANK and claim to be that rank: they wait for the others, or the second one says EADDRINUSE.

    ## Fix
    Set it inside the task: srun bash -c 'RANK=$SLURM_PROCID … python train.py'.
    """
    for line in launch.lines:
        outer, inner = line.task_starter, line.program
        if outer is None or inner is None or outer is inner or line.starter is not None:
            continue
        if outer.launcher is not LauncherKind.SRUN:
            continue
        total, _ = tasks(line)
        each, _ = tasks_per_node(line)
        if (total == 1) or (total is None and each == 1 and nodes(line) == 1) or _keeps_none(outer):
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
        told = shown(words[0]) if words else f"RANK={value}"
        text = f"{told} before {outer.name} is inherited by every task: expected RANK=$SLURM_PROCID inside the task"
        yield point(launch, line, words[0] if words else outer.program, text, "RANK=$SLURM_PROCID in the task", edits)


def _keeps_none(outer: Layer) -> bool:
    given = option(outer, ("--export",))
    return given is not None and (given.value or "").upper().startswith("NONE")


def _wrapped(line: LaunchLine, inner: Layer) -> list[SpanEdit]:
    """The script started by a shell in the task, which gives it its rank."""
    if any(each.is_shell_text for each in line.layers):
        return [
            SpanEdit(inner.program.start, inner.program.start, escape("RANK=$SLURM_PROCID ", inner.program.context))
        ]
    return _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID")


@cause("LAUNCH063", "task-without-rank-variables", Severity.ERROR)
def task_without_rank_variables(launch: Launch) -> Iterator[Finding]:
    """srun or mpirun starts the ranks, but nothing maps its variables to RANK and WORLD_SIZE.

    ## Why it matters
    `environment variable RANK expected, but not set` in every task: torch does not read SLURM_*, OMPI_* or PMI_*.

    ## Fix
    Export RANK, LOCAL_RANK and WORLD_SIZE from the scheduler's variables inside the task, or start one torchrun a node.
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
        if outer.launcher is LauncherKind.SRUN and not any(each.is_shell_text for each in line.layers):
            edits = _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS")
        text = f"{outer.name} sets no RANK, and {script.path} needs it: expected it mapped inside the task, or torchrun"
        yield point(launch, line, inner.program, text, "RANK and WORLD_SIZE from the scheduler's variables", edits)


def _mapped(line: LaunchLine, inner: Layer, ranks: str) -> list[SpanEdit]:
    words = [*inner.own, *([inner.reading.script] if inner.reading.script else []), *inner.reading.arguments]
    end = max(w.end for w in words)
    body = line.source[inner.program.start : end]
    return [SpanEdit(inner.program.start, end, f"bash -c '{escape(f'{ranks} {body}', chr(39))}'")]


@cause("LAUNCH083", "slurm-kill-on-bad-exit-off", Severity.WARNING)
def slurm_kill_on_bad_exit_off(launch: Launch) -> Iterator[Finding]:
    """srun keeps the other tasks running when one task dies.

    ## Why it matters
    Without --kill-on-bad-exit the other ranks wait in a collective for one that is gone, until a time-out of torch or of the
    allocation.

    ## Fix
    Add --kill-on-bad-exit=1 to srun.
    """
    for line in launch.lines:
        srun, inner = line.layer(LauncherKind.SRUN), line.program
        if srun is None or inner is None or inner.launcher is LauncherKind.OTHER:
            continue
        given = next((g for g in srun.reading.given if g.flag.startswith(("-K", "--kill-on-bad-exit"))), None)
        if "SLURM_KILL_BAD_EXIT" in line.environ.variables:
            continue
        total, _ = tasks(line)
        each, _ = tasks_per_node(line)
        several = (total or 0) > 1 or (each or 0) > 1 or (nodes(line) or 0) > 1
        text = "srun keeps the other tasks when one dies: expected --kill-on-bad-exit=1"
        if given is not None and given.word.text in ("-K0", "--kill-on-bad-exit=0"):
            edits = [replace_word(given.word, "--kill-on-bad-exit=1")]
            yield point(launch, line, given.word, text, "--kill-on-bad-exit=1", edits)
        elif given is None and several and inner.launcher is LauncherKind.PYTHON and not srun.reading.is_open:
            edits = [after(srun.program, "--kill-on-bad-exit=1")]
            yield point(launch, line, srun.program, text, "--kill-on-bad-exit=1", edits, severity=Severity.NOTE)


@task_without_rank_variables.look
def tasks_without_variables(log: Log) -> Iterator[Finding]:
    """Under srun or mpirun, every task lacks torch's variables."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_under_scheduler
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import CUT_NOT_SET, NO_KEY, NOT_SET

    lines = matching_lines(log, NOT_SET + NO_KEY) or matching_lines(log, CUT_NOT_SET)
    if lines and is_under_scheduler(log):
        yield finding_of(log, lines, "srun or mpirun started tasks without torch's variables", blames_speaker=False)
