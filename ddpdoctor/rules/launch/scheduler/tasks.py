"""LAUNCH057 to 063, 083: srun, sbatch and mpirun around the launcher or the script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch import (
    Edit,
    Given,
    Launch,
    Launcher,
    Layer,
    Line,
    escape,
    is_known,
    starts_ranks,
)
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.launch.pointing import after, agents, point, remove, replace, revalue, shown
from ddpdoctor.rules.launch.scheduler.counting import NODES, TASKS, nodes, number, option, tasks, tasks_per_node

SCHEDULED = re.compile(r"SLURM_|OMPI_|PMI_|PMIX_|MV2_|JSM_|PALS_|ALPS_")
EARLY = re.compile(r"(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")


@rule("LAUNCH057", "nested-launchers", Severity.ERROR)
def nested(launch: Launch) -> Iterator[Finding]:
    """One launcher starts another launcher.

    ## Why it matters
    Every process of the outer launcher starts an inner one, and each of those forms a job of its own: several independent
    trainings side by side, exit code 0.

    ## Fix
    Keep one launcher.
    """
    for line in launch.lines:
        starters = [each for each in line.layers if starts_ranks(each.launcher)]
        if len(starters) < 2:
            continue
        outer, inner = starters[-2], starters[-1]
        own = [w for w in outer.own if w.start < inner.program.start]
        edits = [Edit(own[0].start, inner.program.start, "")] if own else None
        text = f"{outer.name} starts {inner.name}, which forms a job of its own in every process: expected one launcher"
        yield point(launch, line, outer.program, text, "one launcher", edits)


@rule("LAUNCH058", "launcher-per-task", Severity.ERROR)
def per_task(launch: Launch) -> Iterator[Finding]:
    """The scheduler starts several launchers a node, each of which starts all the ranks.

    ## Why it matters
    srun and mpirun start one torchrun a task. Without a port that makes as many complete jobs, exit code 0; with one, the second
    torchrun of a node ends with EADDRINUSE.

    ## Fix
    One task a node for the launcher: --ntasks-per-node=1; or one task a GPU and no launcher.
    """
    for line in launch.lines:
        starter, outer = line.starter, line.task_starter
        if starter is None or outer is None or starter.launcher is Launcher.DEEPSPEED:
            continue
        count, given = tasks_per_node(line)
        meant = 1
        if count is None:
            total, given = tasks(line)
            most = _nodes_of_launch(line)
            if total is None or most is None or total <= most:
                continue
            count, meant = total, most
        if count <= 1 or (count == meant) or given is None:
            continue
        here = any(g is given for g in outer.reading.given)
        edits = _one_a_node(outer, given, count, meant) if here else [after(outer.program, "--ntasks-per-node=1")]
        where = given.value_word if here else outer.program
        text = f"{outer.name} starts {count} tasks, and each {starter.name} starts all ranks of its node: expected one a node"
        yield point(launch, line, where, text, f"{meant}", edits)


def _one_a_node(outer: Layer, given: Given, count: int, meant: int) -> list[Edit]:
    """One task a node in the option that gives their number, and in the total beside it."""
    if given.value is not None and given.value.startswith("ppr:"):
        edits = [revalue(given, re.sub(r"^ppr:\d+", f"ppr:{meant}", given.value))]
    else:
        edits = [revalue(given, str(meant))]
    flags = ("-n", "--ntasks") if outer.launcher is Launcher.SRUN else TASKS
    total = option(outer, flags)
    each = number(total)
    if total is not None and total is not given and each is not None and each % count == 0:
        edits.append(revalue(total, str(each // count)))
    return edits


def _nodes_of_launch(line: Line) -> int | None:
    """The nodes that the job can have at most, from the scheduler or torchrun's own options."""
    known = [nodes(line)]
    if line.plan is not None and line.plan.nnodes is not None:
        known.append(line.plan.nnodes[-1])
    known.append(_machines(line))
    hosts = option(line.task_starter, ("-H", "-host", "--host", "-hosts", "--hosts"))
    if hosts is not None and is_known(hosts.value):
        known.append(len({h.partition(":")[0] for h in (hosts.value or "").split(",")}))
    return max((k for k in known if k is not None), default=None)


def _machines(line: Line) -> int | None:
    """How many machines accelerate was told of; None where a config file may say it."""
    layer = line.layer(Launcher.ACCELERATE)
    if layer is None or layer is not line.starter or layer.reading.is_open:
        return None
    value = layer.value("num_machines")
    if value is not None:
        return int(value) if re.fullmatch(r"\d{1,6}", value) else None
    return (
        1
        if layer.given("num_processes") and not layer.given("config_file") and not layer.given("machine_rank")
        else None
    )


@rule("LAUNCH059", "node-rank-expanded-too-early", Severity.ERROR)
def too_early(launch: Launch) -> Iterator[Finding]:
    """The node rank is expanded by the shell of the batch script and is 0 on every node.

    ## Why it matters
    $SLURM_NODEID is put in before srun runs, where it is 0: every node becomes node rank 0. On different hosts they wait for
    each other for 15 minutes, on one host the second says EADDRINUSE.

    ## Fix
    Let a shell inside the task expand it: srun bash -c 'torchrun --node-rank=$SLURM_NODEID …' in single quotes; or use c10d.
    """
    for line, layer, _ in agents(launch):
        srun = line.layer(Launcher.SRUN)
        given = layer.given("node_rank")
        if srun is None or given is None or "'" in given.value_word.context:
            continue
        match = EARLY.search(given.value_word.raw)
        if match is None or _task_variable(line, srun):
            continue
        text = f"${match[1]} is expanded before srun starts and is 0 on every node: expected it inside bash -c '…'"
        yield point(launch, line, given.value_word, text, "bash -c '…' in single quotes", _in_shell(line, layer))


def _task_variable(line: Line, srun: Layer) -> bool:
    """The line stands inside a task already: srun is not outside of it."""
    return not any(each is srun for each in line.layers)


def _in_shell(line: Line, layer: Layer) -> list[Edit] | None:
    """The torchrun part wrapped in `bash -c '…'`, or the double quotes around it made single."""
    shell = next((each for each in line.layers if each.is_shell_text), None)
    if shell is not None:
        text = shell.own[-1]
        if not text.raw.startswith('"') or "'" in text.raw:
            return None
        return [Edit(text.start, text.start + 1, "'"), Edit(text.end - 1, text.end, "'")]
    first = layer.program
    last = layer.reading.arguments[-1] if layer.reading.arguments else layer.reading.script or layer.own[-1]
    body = line.source[first.start : last.end]
    return [Edit(first.start, last.end, f"bash -c '{escape(body, chr(39))}'")]


@rule(
    "LAUNCH060",
    "scheduler-variable-unset",
    Severity.ERROR,
    signatures=(r"invalid literal for int\(\) with base 10: ''",),
)
def unset(launch: Launch) -> Iterator[Finding]:
    """An option that counts nodes is empty, because the shell that expanded it does not know the scheduler's variable.

    ## Why it matters
    `invalid literal for int() with base 10: ''`: SLURM_NNODES and its like exist inside the allocation or the task, not in the
    shell of the login node.

    ## Fix
    Start the line inside sbatch or salloc, or let bash -c '…' under srun expand the variable.
    """
    for line in launch.lines:
        layer, plan = line.agent, line.plan
        if layer is None or plan is None or layer.slips:
            continue
        for dest in ("nnodes", "node_rank"):
            given = layer.given(dest)
            if given is None or given.value != "":
                continue
            count = nodes(line)
            edits = [revalue(given, str(count))] if dest == "nnodes" and count else None
            if edits is None and dest == "nnodes" and line.layer(Launcher.SRUN) is None:
                edits = [revalue(given, "1")]
            text = f"{given.written} is empty, its variable is not set in this shell: expected a number"
            yield point(launch, line, given.value_word, text, "a number", edits)


@rule("LAUNCH061", "batch-step-without-srun", Severity.ERROR)
def without_srun(launch: Launch) -> Iterator[Finding]:
    """The batch script starts the job without srun, so that only one task exists.

    ## Why it matters
    The body of a batch script runs once, on the first node, with SLURM_PROCID=0 and SLURM_NTASKS=n: the script believes to be
    rank 0 of n and waits (`1/4 clients joined`), a torchrun waits for nodes where nobody starts one.

    ## Fix
    Put srun before the command.
    """
    for line in launch.lines:
        layer = line.program
        if line.batch is None or line.task_starter is not None or layer is None or layer.launcher is Launcher.CONTAINER:
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
        elif layer.launcher is Launcher.PYTHON and total > 1 and _reads_scheduler(line):
            told = f"{total} tasks, and python runs once"
        else:
            continue
        edits = [Edit(line.argv[0].start, line.argv[0].start, "srun ")] if line.argv else None
        if line.agent is not None and edits is not None and _needs_one_task(line):
            edits = [Edit(line.argv[0].start, line.argv[0].start, "srun --ntasks-per-node=1 ")]
        yield point(launch, line, layer.program, f"the batch job has {told}: expected srun before it", "srun", edits)


def _needs_one_task(line: Line) -> bool:
    return number(option(line.batch, ("--ntasks-per-node",))) != 1


def _reads_scheduler(line: Line) -> bool:
    script = line.script
    if script is None:
        return False
    lightning = {"lightning", "pytorch_lightning"} & set(script.frameworks)
    return bool(lightning) or any(SCHEDULED.match(name) for name in script.reads)


@rule("LAUNCH062", "rank-exported-before-srun", Severity.ERROR)
def exported(launch: Launch) -> Iterator[Finding]:
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
        if outer.launcher is not Launcher.SRUN:
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


def _wrapped(line: Line, inner: Layer) -> list[Edit]:
    """The script started by a shell in the task, which gives it its rank."""
    if any(each.is_shell_text for each in line.layers):
        return [Edit(inner.program.start, inner.program.start, escape("RANK=$SLURM_PROCID ", inner.program.context))]
    return _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID")


@rule("LAUNCH063", "task-without-rank-variables", Severity.ERROR)
def unmapped(launch: Launch) -> Iterator[Finding]:
    """srun or mpirun starts the ranks, but nothing maps its variables to RANK and WORLD_SIZE.

    ## Why it matters
    `environment variable RANK expected, but not set` in every task: torch does not read SLURM_*, OMPI_* or PMI_*.

    ## Fix
    Export RANK, LOCAL_RANK and WORLD_SIZE from the scheduler's variables inside the task, or start one torchrun a node.
    """
    for line in launch.lines:
        outer, inner, script = line.task_starter, line.program, line.script
        if outer is None or inner is None or script is None or inner.launcher is not Launcher.PYTHON:
            continue
        if not script.initialises or any(SCHEDULED.match(name) for name in (*script.reads, *script.sets)):
            continue
        if "RANK" in line.environ.variables or "RANK" in script.sets:
            continue
        edits = None
        if outer.launcher is Launcher.SRUN and not any(each.is_shell_text for each in line.layers):
            edits = _mapped(line, inner, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS")
        text = f"{outer.name} sets no RANK, and {script.path} needs it: expected it mapped inside the task, or torchrun"
        yield point(launch, line, inner.program, text, "RANK and WORLD_SIZE from the scheduler's variables", edits)


def _mapped(line: Line, inner: Layer, ranks: str) -> list[Edit]:
    words = [*inner.own, *([inner.reading.script] if inner.reading.script else []), *inner.reading.arguments]
    end = max(w.end for w in words)
    body = line.source[inner.program.start : end]
    return [Edit(inner.program.start, end, f"bash -c '{escape(f'{ranks} {body}', chr(39))}'")]


@rule("LAUNCH083", "slurm-kill-on-bad-exit-off", Severity.WARNING)
def survivors(launch: Launch) -> Iterator[Finding]:
    """srun keeps the other tasks running when one task dies.

    ## Why it matters
    Without --kill-on-bad-exit the other ranks wait in a collective for one that is gone, until a time-out of torch or of the
    allocation.

    ## Fix
    Add --kill-on-bad-exit=1 to srun.
    """
    for line in launch.lines:
        srun, inner = line.layer(Launcher.SRUN), line.program
        if srun is None or inner is None or inner.launcher is Launcher.OTHER:
            continue
        given = next((g for g in srun.reading.given if g.flag.startswith(("-K", "--kill-on-bad-exit"))), None)
        if "SLURM_KILL_BAD_EXIT" in line.environ.variables:
            continue
        total, _ = tasks(line)
        each, _ = tasks_per_node(line)
        several = (total or 0) > 1 or (each or 0) > 1 or (nodes(line) or 0) > 1
        text = "srun keeps the other tasks when one dies: expected --kill-on-bad-exit=1"
        if given is not None and given.word.text in ("-K0", "--kill-on-bad-exit=0"):
            edits = [replace(given.word, "--kill-on-bad-exit=1")]
            yield point(launch, line, given.word, text, "--kill-on-bad-exit=1", edits)
        elif given is None and several and inner.launcher is Launcher.PYTHON and not srun.reading.is_open:
            edits = [after(srun.program, "--kill-on-bad-exit=1")]
            yield point(launch, line, srun.program, text, "--kill-on-bad-exit=1", edits, severity=Severity.NOTE)
