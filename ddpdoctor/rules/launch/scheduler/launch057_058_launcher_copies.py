"""LAUNCH057, LAUNCH058: launchers that are started several times: by another launcher, or by the scheduler."""

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
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.task_counts import TASKS, nodes, number, option, tasks, tasks_per_node
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, point, remove, revalue
from ddpdoctor.rules.node_findings import only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

SCHEDULERS = ("srun", "openmpi", "mpich", "mvapich2", "jsrun")


@cause("LAUNCH057", "nested-launchers", Severity.ERROR)
def nested_launchers(launch: Launch) -> Iterator[Finding]:
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
        edits = _one_launcher(line, outer, inner)
        text = f"{outer.name} starts {inner.name}, which forms a job of its own in every process: expected one launcher"
        yield point(launch, line, outer.program, text, "one launcher", edits)


COUNTS = {
    LauncherKind.TORCHRUN: ("nproc_per_node", "--nproc-per-node={}"),
    LauncherKind.LEGACY: ("nproc_per_node", "--nproc_per_node={}"),
    LauncherKind.ACCELERATE: ("num_processes", "--num_processes {}"),
    LauncherKind.DEEPSPEED: ("num_gpus", "--num_gpus {}"),
}
"""The option with the processes of one node, and how it is written; accelerate counts those of all machines."""
MACHINES = ("nnodes", "num_machines", "num_nodes", "hostfile")


def _one_launcher(line: LaunchLine, outer: Layer, inner: Layer) -> list[SpanEdit] | None:
    """The line with one launcher and as many processes as were meant; None where that takes more than leaving one out."""
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


@cause("LAUNCH058", "launcher-per-task", Severity.ERROR, explains=("LAUNCH070",))
def launcher_per_task(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The scheduler starts several launchers a node, each of which starts all the ranks.

    ## Why it matters
    srun and mpirun start one torchrun a task. Without a port that makes as many complete jobs, exit code 0; with one, the second
    torchrun of a node ends with EADDRINUSE.

    ## Fix
    One task a node for the launcher: --ntasks-per-node=1; or one task a GPU and no launcher.
    """
    if nodes is not None:
        yield from _met(nodes)
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
        edits = _one_a_node(outer, given, count, meant) if here else [after(outer.program, "--ntasks-per-node=1")]
        where = given.value_word if here else outer.program
        text = f"{outer.name} starts {count} tasks, and each {starter.name} starts all ranks of its node: expected one a node"
        yield point(launch, line, where, text, f"{meant}", edits)


def _inside(launch: Launch, line: LaunchLine, starter: Layer) -> Iterator[Finding]:
    """The line stands in a task of a scheduler, as the environment says, and there are more tasks than the line has nodes."""
    environ, plan = line.environ, line.plan
    launcher, tasks_in_all = environ.launcher, environ.world_size
    if launcher is None or launcher.name not in SCHEDULERS or plan is None or not plan.is_multinode:
        return
    most = plan.nnodes[1] if plan.nnodes is not None else 0
    if tasks_in_all is not None and tasks_in_all > most and plan.settings["nnodes"].origin == "line":
        text = (
            f"{launcher.title} started {tasks_in_all} tasks with this line, and {starter.name} wants {most} nodes: expected"
            " one task a node"
        )
        yield point(launch, line, starter.program, text, f"{most} tasks")


def _met(nodes: Nodes) -> Iterator[Finding]:
    """Several tasks of one node that each would start the launcher."""
    machines: dict[str, list[Node]] = {}
    for node in nodes.nodes:
        if node.is_scheduled and node.form != Form.ENV and node.machine:
            machines.setdefault(node.machine, []).append(node)
    crowded = [found for found in machines.values() if len(found) > 1]
    if crowded:
        first = crowded[0][0]
        yield Finding(
            f"the scheduler starts this line {len(crowded[0])} times on {first.host}, and each starts all ranks of its node:"
            " expected one task a node",
            (Evidence("nodes.machine", f"{len(crowded[0])} on {first.host}", "one a node"),),
            where=Where(host=first.host) if len(crowded) == 1 and len(machines) > 1 else Where(),
        )


def _one_a_node(outer: Layer, given: Given, count: int, meant: int) -> list[SpanEdit]:
    """One task a node in the option that gives their number, and in the total beside it."""
    if given.value is not None and given.value.startswith("ppr:"):
        edits = [revalue(given, re.sub(r"^ppr:\d+", f"ppr:{meant}", given.value))]
    else:
        edits = [revalue(given, str(meant))]
    flags = ("-n", "--ntasks") if outer.launcher is LauncherKind.SRUN else TASKS
    total = option(outer, flags)
    each = number(total)
    if total is not None and total is not given and each is not None and each % count == 0:
        edits.append(revalue(total, str(each // count)))
    return edits


def _nodes_of_launch(line: LaunchLine) -> int | None:
    """The nodes that the job can have at most, from the scheduler or torchrun's own options."""
    known = [nodes(line)]
    if line.plan is not None and line.plan.nnodes is not None:
        known.append(line.plan.nnodes[-1])
    known.append(_machines(line))
    hosts = option(line.task_starter, ("-H", "-host", "--host", "-hosts", "--hosts"))
    if hosts is not None and is_known(hosts.value):
        known.append(len({h.partition(":")[0] for h in (hosts.value or "").split(",")}))
    return max((k for k in known if k is not None), default=None)


def _machines(line: LaunchLine) -> int | None:
    """How many machines accelerate was told of; None where a config file may say it."""
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
    """One rank is announced again and again by different processes of one job."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.rules.log.world_sizes import worlds_finding

    forms: dict[tuple[str, str], dict[str, list[LogLine]]] = defaultdict(lambda: defaultdict(list))
    for line, found in context_lines(log, "member"):  # loggers may tell each once more in another form
        form = _NUMBERS.sub("#", line.text[: found.start()])
        forms[form, found["members"]][found["rank"]].extend([line] * line.count)
    for (_, members), said in forms.items():
        times, rest = divmod(sum(map(len, said.values())), len(said))
        is_even = all(len(each) == times for each in said.values()) or times * len(said) == int(members)
        if members != "1" and times > 1 and not rest and is_even:
            rank, lines = next(iter(said.items()))
            text = (
                f"rank {rank} of {members} started {times} times, and so did every other: a launcher runs in each task"
            )
            yield worlds_finding(log, text, lines[:3], lines[0])
            return
