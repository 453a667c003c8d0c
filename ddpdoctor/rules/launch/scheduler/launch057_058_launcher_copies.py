"""LAUNCH057, LAUNCH058: launchers that another launcher or the scheduler starts several times."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer, starts_ranks
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, is_known
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.facts.submission import Launcher, Step, Submission, Task
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.task_counts import TASKS, nodes, number, option, tasks, tasks_per_node
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, point, remove, revalue
from ddpdoctor.rules.launch.submitted import at_mark, option_mark
from ddpdoctor.rules.node_findings import only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

SCHEDULERS = ("srun", "openmpi", "mpich", "mvapich2", "jsrun")


@cause("LAUNCH057", "nested-launchers", Severity.ERROR)
def nested_launchers(launch: Launch) -> Iterator[Finding]:
    """One launcher starts another launcher.

    ## Why it matters
    Every process of the outer launcher starts an inner one, and each of those starts a separate job: several
    independent trainings run side by side and exit with 0.

    ## Fix
    Remove one of the two launchers.

    ## Example
        error[LAUNCH057]: accelerate starts torchrun in every process

        # before
        accelerate launch --num_processes=2 --no_python torchrun --nproc-per-node=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line in launch.lines:
        starters = [each for each in line.layers if starts_ranks(each.launcher)]
        if len(starters) < 2:
            continue
        outer, inner = starters[-2], starters[-1]
        edits = _one_launcher(line, outer, inner)
        text = f"{outer.name} starts {_name(inner)} in every process"
        yield point(launch, line, outer.program, text, "one launcher", edits, label="remove one of the launchers")


def _name(layer: Layer) -> str:
    """The launcher's own name, also if Python runs it as a module."""
    modules = {LauncherKind.LEGACY: "torch.distributed.launch", LauncherKind.TORCHRUN: "torchrun"}
    return modules.get(layer.launcher, layer.name)


COUNTS = {
    LauncherKind.TORCHRUN: ("nproc_per_node", "--nproc-per-node={}"),
    LauncherKind.LEGACY: ("nproc_per_node", "--nproc_per_node={}"),
    LauncherKind.ACCELERATE: ("num_processes", "--num_processes {}"),
    LauncherKind.DEEPSPEED: ("num_gpus", "--num_gpus {}"),
}
"""The option with the processes of one node, and how it is written; accelerate counts those of all machines."""
MACHINES = ("nnodes", "num_machines", "num_nodes", "hostfile")


def _one_launcher(line: LaunchLine, outer: Layer, inner: Layer) -> list[SpanEdit] | None:
    """The line with one launcher and as many processes as intended; None if that takes more than removing one launcher."""
    own = [w for w in outer.own if w.start < inner.program.start]
    if not own:
        return None
    without_outer = SpanEdit(own[0].start, inner.program.start, "")
    is_multinode = any(outer.given(dest) for dest in MACHINES)
    count, written = COUNTS[inner.launcher]
    if inner.given(count) is not None and not is_multinode:
        return [without_outer]
    if not inner.reading.given and outer.given("no_python") is None and outer.given("module") is None:
        return list(remove(line, *inner.own))
    processes = outer.value(COUNTS[outer.launcher][0])
    if is_multinode:
        return None
    if processes is None:
        return [without_outer]
    if not is_known(processes):
        return None
    return [without_outer, after(inner.own[_last_of_name(inner)], written.format(processes))]


def _last_of_name(layer: Layer) -> int:
    """The index of the last word of a launcher's name: `accelerate launch` has two."""
    return 1 if layer.launcher is LauncherKind.ACCELERATE and [w.text for w in layer.own[1:2]] == ["launch"] else 0


@cause("LAUNCH058", "launcher-per-task", Severity.ERROR, explains=("LAUNCH070",), repairs=("task-count",))
def launcher_per_task(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The scheduler starts several launchers per node, each of which starts all ranks.

    ## Why it matters
    srun and mpirun start one torchrun per task. Without a port these are as many complete jobs, which exit with 0;
    with a port the second torchrun of a node fails with `EADDRINUSE`.

    ## Fix
    Run one torchrun per node: `--ntasks-per-node=1`.

    Or run one task per GPU without torchrun.

    ## Example
        error[LAUNCH058]: srun starts 8 torchruns per node, expected 1

        # before
        srun --nodes=2 --ntasks-per-node=8 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    if nodes is not None:
        yield from _several_tasks(nodes)
    if only_met(nodes, launch):
        return
    assert launch is not None
    for line in launch.lines:
        starter, outer = line.starter, line.task_starter
        if starter is not None and outer is None:
            yield from _inside(launch, line, starter)
        if starter is None or outer is None or starter.launcher is LauncherKind.DEEPSPEED:
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
        edits = _one_per_node(outer, given, count, meant) if here else [after(outer.program, "--ntasks-per-node=1")]
        where = given.value_word if here else outer.program
        place = "per node" if meant == 1 else f"on {meant} nodes"
        copies = f"{count} torchruns" if _name(starter) == "torchrun" else f"{count} copies of {_name(starter)}"
        text = f"{outer.name} starts {copies} {place}, expected {meant}"
        yield point(launch, line, where, text, f"{meant}", edits, label="each one starts all ranks")


def _inside(launch: Launch, line: LaunchLine, starter: Layer) -> Iterator[Finding]:
    """The line runs in a task of a scheduler, by its environment, and there are more tasks than the line has nodes."""
    environ, plan = line.environ, line.plan
    launcher, tasks_in_all = environ.launcher, environ.world_size
    if launcher is None or launcher.name not in SCHEDULERS or plan is None or not plan.is_multinode:
        return
    most = plan.nnodes[1] if plan.nnodes is not None else 0
    if tasks_in_all is not None and tasks_in_all > most and plan.settings["nnodes"].origin == "line":
        text = f"{launcher.title} started this line {tasks_in_all} times for {most} nodes"
        yield point(launch, line, starter.program, text, f"{most} tasks", label="run one task per node")


def _several_tasks(nodes: Nodes) -> Iterator[Finding]:
    """Several tasks of one node, each of which would start the launcher."""
    machines: dict[str, list[Node]] = {}
    for node in nodes.nodes:
        if node.is_scheduled and node.form != Form.ENV and node.machine:
            machines.setdefault(node.machine, []).append(node)
    crowded = [tasks for tasks in machines.values() if len(tasks) > 1]
    if crowded:
        first = crowded[0][0]
        yield Finding(
            f"the scheduler starts this line {len(crowded[0])} times on {first.host}",
            (Evidence("nodes.machine", f"{len(crowded[0])} on {first.host}", "one per node"),),
            where=Where(host=first.host) if len(crowded) == 1 and len(machines) > 1 else Where(),
        )


def _one_per_node(outer: Layer, given: Given, count: int, meant: int) -> list[SpanEdit]:
    """One task per node in the option that sets their number, and the matching total."""
    if given.value is not None and given.value.startswith("ppr:"):
        edits = [revalue(given, re.sub(r"^ppr:\d+", f"ppr:{meant}", given.value))]
    else:
        edits = [revalue(given, str(meant))]
    flags = ("-n", "--ntasks") if outer.launcher is LauncherKind.SRUN else TASKS
    total = option(outer, flags)
    all_tasks = number(total)
    if total is not None and total is not given and all_tasks is not None and all_tasks % count == 0:
        edits.append(revalue(total, str(all_tasks // count)))
    return edits


def _nodes_of_launch(line: LaunchLine) -> int | None:
    """The most nodes that the job can have, by the options of the scheduler or of torchrun."""
    known = [nodes(line)]
    if line.plan is not None and line.plan.nnodes is not None:
        known.append(line.plan.nnodes[-1])
    known.append(_machines(line))
    hosts = option(line.task_starter, ("-H", "-host", "--host", "-hosts", "--hosts"))
    if hosts is not None and is_known(hosts.value):
        known.append(len({h.partition(":")[0] for h in (hosts.value or "").split(",")}))
    return max((k for k in known if k is not None), default=None)


def _machines(line: LaunchLine) -> int | None:
    """The machines of accelerate; None if a config file may set them."""
    layer = line.layer(LauncherKind.ACCELERATE)
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


_NUMBERS = re.compile(r"\d+")


@launcher_per_task.look
def launched_per_task(log: Log) -> Iterator[Finding]:
    """Different processes of one job announce the same rank several times."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.rules.log.world_sizes import worlds_finding

    forms: dict[tuple[str, str], dict[str, list[LogLine]]] = defaultdict(lambda: defaultdict(list))
    for line, member in context_lines(log, "member"):  # loggers may print each once more in another form
        form = _NUMBERS.sub("#", line.text[: member.start()])
        forms[form, member["members"]][member["rank"]].extend([line] * line.count)
    for (_, members), lines_of_ranks in forms.items():
        times, rest = divmod(sum(map(len, lines_of_ranks.values())), len(lines_of_ranks))
        is_even = all(len(lines) == times for lines in lines_of_ranks.values())
        is_even = is_even or times * len(lines_of_ranks) == int(members)
        if members != "1" and times > 1 and not rest and is_even:
            lines = next(iter(lines_of_ranks.values()))
            text = f"each of {members} ranks started {times} times: a launcher runs in each task"
            yield worlds_finding(log, text, lines[:3], lines[0])
            return


@launcher_per_task.look
def copies_of_whole_jobs(submission: Submission) -> Iterator[Finding]:
    """A launcher of tasks starts deepspeed's runner on several hosts, or several torchruns on one host."""
    told = set()
    for step in submission.steps:
        for task in step.tasks if step.is_certain else ():
            launcher = task.launcher
            if launcher is None or launcher.name not in _TASK_STARTERS or launcher.at in told:
                continue
            if task.layer.launcher is LauncherKind.DEEPSPEED:
                text = _runner_copies(task, launcher)
            else:
                text = _torchrun_copies(step, task, launcher)
            if text is not None:
                told.add(launcher.at)
                label = "each one starts all ranks"
                mark = option_mark(submission, task, "-n", "--ntasks", "-a")
                yield at_mark(submission, mark, text, seen=f"{launcher.tasks}", expected="1", label=label)


_TASK_STARTERS = ("srun", "jsrun", "flux", "mpirun", "mpiexec")


def _runner_copies(task: Task, launcher: Launcher) -> str | None:
    """deepspeed's runner starts all nodes by itself."""
    if task.layer.given("no_ssh") is not None or launcher.tasks < 2:
        return None
    nodes = task.layer.value("num_nodes") or ""
    is_of_several = len(task.active or ()) > 1 or (nodes.isdigit() and int(nodes) > 1)
    return (
        f"{launcher.name} starts deepspeed {launcher.tasks} times, and each one starts all nodes"
        if is_of_several
        else None
    )


def _torchrun_copies(step: Step, task: Task, launcher: Launcher) -> str | None:
    """More torchruns on each host than nodes that they wait for."""
    plan = next((agent.plan for agent in step.job.agents if agent.line is task.line), None)
    per_host = min(launcher.tasks // max(1, len(launcher.hosts)), sum(each.host == task.host for each in step.tasks))
    if plan is None or plan.nnodes is None or per_host < 2 or plan.nnodes[1] >= launcher.tasks:
        return None  # also where a shell in each task starts it in one of them only
    return f"{launcher.name} starts {per_host} torchruns per node, expected 1"
