"""LAUNCH078, LAUNCH081: what DeepSpeed and Lightning expect of the launcher."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit, Word, escape, is_known
from ddpdoctor.facts.submission import Launcher, Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, base_name, before, point, revalue, spelled
from ddpdoctor.rules.launch.program.launch049_to_051_053_to_056_launcher_of_program import plain_python
from ddpdoctor.rules.launch.submitted import at_mark, count_of, has_one_node_by_default, option_mark


@cause(
    "LAUNCH078",
    "deepspeed-mpi-discovery",
    Severity.ERROR,
    signatures=(r"attempting to detect MPI environment", r"No module named 'mpi4py'"),
)
def deepspeed_mpi_discovery(launch: Launch) -> Iterator[Finding]:
    """A script that uses DeepSpeed is started with plain python, so DeepSpeed looks for MPI.

    ## Why it matters
    DeepSpeed prints `Not using the DeepSpeed or dist launchers, attempting to detect MPI environment…`, then fails
    with `No module named 'mpi4py'`. MPI is not the problem: RANK is not set.

    ## Fix
    Start it with deepspeed, torchrun or accelerate launch.

    ## Example
        Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...

        # before
        python train.py

        # after
        deepspeed train.py
    """
    for line, layer, script in plain_python(launch):
        if "deepspeed" not in script.frameworks or "RANK" in line.environ.variables or line.task_starter or line.batch:
            continue
        if "RANK" in script.sets or {"accelerate", "transformers", "lightning", "pytorch_lightning"} & set(
            script.frameworks
        ):
            continue
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, escape("deepspeed", layer.program.context))]
        text = f"{base_name(script.path):.20} uses DeepSpeed, but python does not set RANK"
        yield point(launch, line, layer.program, text, "deepspeed", edits, label="use deepspeed or torchrun")


@cause(
    "LAUNCH081",
    "lightning-world-mismatch",
    Severity.ERROR,
    signatures=(
        r"in Lightning, but the product \(\d+ \* \d+\) does not match the world size",
        r"in Lightning, but the number of (?:tasks|GPUs) per node configured in SLURM",
    ),
)
def lightning_world_mismatch(launch: Launch) -> Iterator[Finding]:
    """Lightning's Trainer and the launcher have different world sizes.

    ## Why it matters
    Lightning fails with ``You set `devices=2` and `num_nodes=1` in Lightning, but the product (2 * 1) does not match
    the world size (3).``

    ## Fix
    Start devices times num_nodes ranks, or use `devices="auto"`.

    ## Example
        You set `devices=2` and `num_nodes=1` in Lightning, but the product (2 * 1) does not match the world size (3).

        # before
        torchrun --nproc-per-node=3 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, plan in agents(launch):
        script = line.script
        if script is None or script.trainer_devices is None or plan.nproc is None or plan.nnodes is None:
            continue
        if not {"lightning", "pytorch_lightning"} & set(script.frameworks) or plan.nnodes[0] != plan.nnodes[1]:
            continue
        nodes = script.trainer_nodes or 1
        if script.trainer_devices * nodes != plan.nproc * plan.nnodes[1]:
            given = layer.given("nproc_per_node")
            edits = None
            if nodes == plan.nnodes[1]:
                edits = _nproc(layer, launch, script.trainer_devices)
            started, expected = plan.nproc * plan.nnodes[1], script.trainer_devices * nodes
            text = f"{started} ranks for Trainer(devices={script.trainer_devices}, num_nodes={nodes})"
            label = f"Lightning expects {expected} rank{'s' * (expected != 1)}"
            word: Word = layer.program if given is None else given.value_word
            yield point(launch, line, word, text, f"{script.trainer_devices} processes per node", edits, label=label)


def _nproc(layer: Layer, launch: Launch, count: int) -> list[SpanEdit]:
    given = layer.given("nproc_per_node")
    if given is not None:
        return [revalue(given, str(count))]
    assert layer.reading.script is not None
    return [before(layer.reading.script, f"{spelled(layer, 'nproc_per_node', launch.version)}={count}")]


@lightning_world_mismatch.look
def sizes_of_the_scheduler(submission: Submission) -> Iterator[Finding]:
    """Lightning compares its devices and num_nodes with the variables of Slurm (fabric/plugins/environments/slurm.py)."""
    told = set()
    for step in submission.steps:
        task = step.tasks[0]
        launcher = task.launcher
        if task.layer.launcher is not LauncherKind.PYTHON or not step.is_certain or not _uses_lightning(task):
            continue
        if launcher is None or launcher.name != "srun":
            continue
        found = _difference(submission, task, launcher)
        if found is not None and launcher.at not in told:
            told.add(launcher.at)
            yield found


def _uses_lightning(task: Task) -> bool:
    script = task.script
    return bool(task.trainer) or (
        script is not None and not {"lightning", "pytorch_lightning"}.isdisjoint(script.frameworks)
    )


def _difference(submission: Submission, task: Task, launcher: Launcher) -> Finding | None:
    """The first thing that differs, in the order in which Lightning looks."""
    environ = task.line.environ.variables
    tasks, per_node = launcher.tasks, environ.get("SLURM_NTASKS_PER_NODE")
    script = task.script
    devices = task.trainer.get("devices", None if script is None else script.trainer_devices)
    given_nodes = task.trainer.get("num_nodes", None if script is None else script.trainer_nodes)
    nodes = given_nodes or 1
    knows_sizes = devices is not None or given_nodes is not None
    if is_known(environ.get("SLURM_JOB_NAME")) and environ["SLURM_JOB_NAME"] in ("bash", "interactive"):
        return None
    if per_node is None and tasks > 1:
        mark, wanted = (
            option_mark(submission, task, "-n", "--ntasks"),
            f"--ntasks-per-node={tasks // len(launcher.hosts)}",
        )
        text = f"Lightning needs --ntasks-per-node where srun starts {tasks} tasks"
        return at_mark(submission, mark, text, seen=f"{tasks} tasks", expected=wanted, label=f"use {wanted}")
    if devices is not None and per_node is not None and is_known(per_node) and per_node != str(devices):
        mark = option_mark(submission, task, "--ntasks-per-node")
        text = f"--ntasks-per-node={per_node}, but Lightning has devices={devices}"
        return at_mark(submission, mark, text, seen=per_node, expected=str(devices), label=f"use {devices}")
    if knows_sizes and len(launcher.hosts) != nodes and _nodes_are_known(submission, launcher):
        mark = option_mark(submission, task, "-N", "--nodes")
        text = f"{count_of(len(launcher.hosts), 'node')}, but Lightning has num_nodes={nodes}"
        meant = f"num_nodes={len(launcher.hosts)}"
        return at_mark(submission, mark, text, seen=str(nodes), expected=meant, label=f"Trainer needs {meant}")
    if nodes > 1 and has_one_node_by_default(submission, task):
        mark, text = (
            option_mark(submission, task),
            f"Lightning has num_nodes={nodes}, but sbatch allocates 1 node by default",
        )
        fix, label = f"Add `#SBATCH --nodes={nodes}`.", "1 node by default"
        seen, severity = str(nodes), Severity.WARNING
        return at_mark(submission, mark, text, seen=seen, expected="1 node", label=label, severity=severity, fix=fix)
    if devices is not None and tasks != devices * nodes and _nodes_are_known(submission, launcher):
        mark = option_mark(submission, task, "-n", "--ntasks")
        text = f"srun starts {count_of(tasks, 'task')}, but Lightning expects {devices * nodes}"
        return at_mark(
            submission, mark, text, seen=str(tasks), expected=str(devices * nodes), label="the counts differ"
        )
    return None


def _nodes_are_known(submission: Submission, launcher: Launcher) -> bool:
    return bool({"-N", "--nodes", "-w", "--nodelist"} & {*submission.grant.places, *launcher.places})
