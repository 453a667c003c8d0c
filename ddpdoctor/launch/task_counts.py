"""How many tasks and nodes the options of a scheduler request."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import is_known

__all__ = ["NODES", "nodes", "number", "option", "scheduled_nodes", "tasks", "tasks_per_node"]

TASKS_PER_NODE = ("--ntasks-per-node", "-npernode", "--npernode", "-N", "-ppn", "--ppn", "-perhost")
TASKS = ("-n", "--ntasks", "-np", "--np", "-c")
NODES = ("-N", "--nodes")


def option(layer: Layer | None, flags: tuple[str, ...]) -> Given | None:
    """The last of these options of a scheduler's layer."""
    if layer is None:
        return None
    return next((g for g in reversed(layer.reading.given) if g.flag in flags), None)


def number(given: Given | None) -> int | None:
    """The number at the start of an option's value, None if it is not known."""
    match = re.match(r"\d+", given.value or "") if given is not None and is_known(given.value) else None
    return int(match[0]) if match else None


def tasks_per_node(line: LaunchLine) -> tuple[int | None, Given | None]:
    """How many tasks the scheduler starts per node, with the option that sets it; None if the line does not show it."""
    outer = line.task_starter
    if outer is None:
        return None, None
    slurm = outer.launcher is LauncherKind.SRUN
    flags = ("--ntasks-per-node",) if slurm else TASKS_PER_NODE
    for layer in (outer, line.batch if slurm else None):
        given = option(layer, flags)
        if number(given) is not None:
            return number(given), given
    mapped = None if slurm else option(outer, ("--map-by", "-map-by"))
    match = re.match(r"ppr:(\d+):node\b", mapped.value or "") if mapped is not None else None
    return (int(match[1]), mapped) if match else (None, None)


def tasks(line: LaunchLine) -> tuple[int | None, Given | None]:
    """How many tasks the scheduler starts in total, with the option that sets it."""
    outer = line.task_starter
    slurm = outer is not None and outer.launcher is LauncherKind.SRUN
    for layer in (outer, line.batch if slurm or outer is None else None):
        given = option(layer, ("-n", "--ntasks") if slurm or outer is None else TASKS)
        if number(given) is not None:
            return number(given), given
    return None, None


def nodes(line: LaunchLine) -> int | None:
    """How many nodes the scheduler allocates."""
    outer = line.layer(LauncherKind.SRUN)
    for layer in (outer, line.batch):
        count = number(option(layer, NODES))
        if count is not None:
            return count
    return None


def scheduled_nodes(line: LaunchLine) -> int | None:
    """On how many nodes the scheduler starts the line, with one task each; None if that is not certain."""
    outer = line.task_starter
    if outer is None or outer.reading.is_open:
        return None
    per_node, _ = tasks_per_node(line)
    total, _ = tasks(line)
    count = nodes(line) if outer.launcher is LauncherKind.SRUN else total
    if per_node == 1 and outer.launcher is LauncherKind.MPIRUN:
        return count
    is_one_each = per_node == 1 or (per_node is None and total in (None, count))
    return count if outer.launcher is LauncherKind.SRUN and is_one_each else None
