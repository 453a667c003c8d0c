"""The tasks that srun starts: hosts, sizes and variables of a job step."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation, gpus_of, host_list, number_of, option
from ddpdoctor.launch.evaluator.imagined_run import Withheld
from ddpdoctor.launch.evaluator.started_launchers import (
    LaunchedTask,
    StartedLauncher,
    TaskLayout,
    of_task,
    placed,
)
from ddpdoctor.launch.evaluator.tools import host_names
from ddpdoctor.launch.evaluator.values import NODE, NOT_KNOWN, Origin, Value

__all__ = ["MOST_TASKS", "SlurmSteps"]

MOST_TASKS = 1_024


class SlurmSteps:
    """Job steps in one allocation."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def layout(self, what: StartedLauncher) -> TaskLayout:
        """A job step: tasks on the nodes of the allocation; of a heterogeneous job, on those of the chosen components."""
        layer, number_of_task, first_node = what.layer, 0, 0
        parts, tasks = self._parts(layer), []
        steps = [(part, *self.size(layer, part)) for part in parts]
        everywhere = tuple(host for _, hosts, _ in steps for host in hosts)
        total = sum(count for _, _, count in steps)
        of_all = _variables_of_step(total, everywhere, is_of_several=len(parts) > 1)
        for part, hosts, count in steps:
            per_task = number_of((option(layer, "--gpus-per-task") or "").rpartition(":")[2]) or part.gpus_per_task
            gpus = gpus_of(layer) or per_task or part.gpus_per_node
            for task in range(min(count, MOST_TASKS)):
                node, local = placed(task, count, len(hosts))
                at = first_node + node
                own = _task_variables(number_of_task + task, at, local, hosts[node]) | of_all
                tasks.append(LaunchedTask(hosts[node], at, number_of_task + task, local, gpus, own))
            number_of_task, first_node = number_of_task + count, first_node + len(hosts)
        base, withheld = self._exported(what)
        per_node = option(layer, "--ntasks-per-node")
        if per_node is not None:
            base["SLURM_NTASKS_PER_NODE"] = what.value(per_node)
        elif self._allocation.components and parts[-1].tasks_per_node is not None:
            counts = {part.tasks_per_node for part in parts}
            base["SLURM_NTASKS_PER_NODE"] = Value(str(parts[-1].tasks_per_node)) if len(counts) == 1 else NOT_KNOWN
        return tasks, base, withheld

    def _parts(self, layer: Layer) -> tuple[Allocation, ...]:
        """The components of a heterogeneous job that a step uses: the first one unless it says which."""
        components = self._allocation.components
        chosen = option(layer, "--het-group", "--pack-group")
        if not components or chosen is None or UNKNOWN in chosen:
            return (components[0] if components else self._allocation,)
        numbers = {int(number) for number in re.findall(r"\d{1,3}", chosen)}
        for low, high in re.findall(r"(\d{1,3})-(\d{1,3})", chosen):
            numbers |= set(range(int(low), min(int(high), 64) + 1))
        return tuple(each for at, each in enumerate(components) if at in numbers) or components[:1]

    def _exported(self, what: StartedLauncher) -> tuple[dict[str, Value], dict[str, Withheld]]:
        """What `--export` passes on, or SLURM_EXPORT_ENV, which sbatch sets by its own `--export`; and what it drops."""
        environ, given = what.environ, option(what.layer, "--export")
        inherited = environ.get("SRUN_EXPORT_ENV", environ.get("SLURM_EXPORT_ENV"))
        words = given if given is not None else None if inherited is None else inherited.text
        if words is None or UNKNOWN in words or words.upper() == "ALL":
            return dict(environ), {}
        names = [name for name in words.split(",") if name not in ("ALL", "NONE", "NIL")]
        is_all = "ALL" in words.split(",")
        kept = {name for name in environ if is_all or name.startswith(("SLURM_", "SPANK_"))}
        base = {name: value for name, value in environ.items() if name in kept or name in names}
        base.update({name: Value(value) for name, sign, value in (n.partition("=") for n in names) if sign})
        if given is None:
            place = self._allocation.places.get("--export")
            by, at = f"#SBATCH --export={words}", place or what.argv[0].origins[0]
        else:
            by, at = f"srun --export={words}", what.places().get("--export", Origin("", 0, 0))
        gone = {name: value for name, value in environ.items() if name not in base and value.origins}
        return base, {name: Withheld(value, by, at) for name, value in gone.items()}

    def size(self, layer: Layer, allocation: Allocation | None = None) -> tuple[tuple[str, ...], int]:
        """The hosts and the number of tasks of a step."""
        allocation = self._allocation if allocation is None else allocation
        named = option(layer, "-w", "--nodelist")
        names = host_names(named) if named and UNKNOWN not in named else None
        nodes = number_of(option(layer, "-N", "--nodes"))
        tasks = number_of(option(layer, "-n", "--ntasks"))
        per_node = number_of(option(layer, "--ntasks-per-node"))
        hosts = tuple(names) if names else _usable_hosts(layer, allocation.hosts)
        if nodes is not None and not allocation.is_slurm:
            hosts = tuple(f"node-{at}" for at in range(min(nodes, MOST_NODES)))
        elif nodes is not None:
            hosts = hosts[: max(1, nodes)]
        if tasks is None and per_node is not None:
            tasks = len(hosts) * per_node
        if tasks is None and nodes is not None and allocation.tasks_per_node is None:
            tasks = max(len(hosts), allocation.tasks or 0)
        if tasks is None and (nodes is not None or names is not None):
            tasks = len(hosts) * (allocation.tasks_per_node or 1)
        tasks = allocation.tasks_by_default if tasks is None else tasks
        if nodes is None and tasks < len(hosts) and names is None:
            hosts = hosts[: max(1, tasks)]
        return hosts, tasks


def _usable_hosts(layer: Layer, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of an allocation that a step may use, by `--exclude` and `--relative`."""
    excluded = option(layer, "-x", "--exclude")
    gone = host_names(excluded) if excluded and UNKNOWN not in excluded else None
    first = number_of(option(layer, "-r", "--relative")) or 0
    return tuple(host for host in hosts[first:] if host not in (gone or ())) or hosts


def _task_variables(task: int, node: int, local: int, host: str) -> dict[str, Value]:
    """What srun sets in one task."""
    return {
        "SLURM_PROCID": of_task(task),
        "SLURM_LOCALID": of_task(local),
        "SLURM_NODEID": Value(str(node), varies=frozenset((NODE,))),
        "SLURMD_NODENAME": Value(host, varies=frozenset((NODE,))),
    }


def _variables_of_step(tasks: int, hosts: tuple[str, ...], *, is_of_several: bool) -> dict[str, Value]:
    """What srun sets in all tasks of a step: the sizes are those of the step. Over several components of a job, those of the
    job are as well.
    """
    count, names = Value(str(len(hosts))), Value(host_list(hosts))
    found = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), Value(str(tasks)))
    found |= dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), count)
    found |= dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), names)
    return {**found, "SLURM_JOB_NUM_NODES": count, "SLURM_JOB_NODELIST": names} if is_of_several else found
