"""How many ranks a line starts on one node."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.launch.task_counts import nodes, tasks, tasks_per_node

__all__ = ["ranks_here"]


def ranks_here(line: LaunchLine) -> int | None:
    """The ranks of one node; None if the line does not show it."""
    starter = line.starter
    if starter is None:
        return _tasks_here(line)
    if line.plan is not None and starter is line.agent:
        setting = line.plan.settings["nproc_per_node"]
        return (
            line.pod.gpus
            if line.plan.nproc is None and line.pod is not None and setting.value == "gpu"
            else line.plan.nproc
        )
    if starter.launcher is LauncherKind.ACCELERATE:
        total, machines = _number(starter.value("num_processes")), _number(starter.value("num_machines") or "1")
        return total // machines if total and machines else None
    if starter.launcher is LauncherKind.DEEPSPEED:
        return _number(starter.value("num_gpus"))
    return None


def _tasks_here(line: LaunchLine) -> int | None:
    """The tasks that a scheduler starts per node, each of which is a rank."""
    if line.task_starter is None:
        return 1 if line.program is not None and line.program.launcher is LauncherKind.PYTHON else None
    per_node, _ = tasks_per_node(line)
    total, _ = tasks(line)
    if per_node is not None:
        return per_node
    return total if nodes(line) == 1 else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None
