"""What `lint` judges: the facts of launch lines, and the rules that need only a line and its environment."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence

from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for, selection
from ddpdoctor.engine import extended, judge
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Report
from ddpdoctor.rules import CauseScope, Rule
from ddpdoctor.system.machine import this_machine

__all__ = ["AREAS", "environ_of", "facts_of", "rules_of", "rules_of_machines", "with_machines"]

AREAS = ("environ", "launch")

OVERWRITTEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rules_of(request: Request) -> tuple[Rule, ...]:
    """The selected rules that can be judged from a line: those of the environment and of launches."""
    return tuple(
        each
        for each in rules_for(request, AREAS)
        if each.scope is not CauseScope.PROCESS
        and set(each.needs) <= {"environ", "launch", "job", "startup", "submission"}
    )


def rules_of_machines(request: Request, lines: Iterable[LaunchLine]) -> tuple[Rule, ...]:
    """The causes of machines that these lines may show, judged from the lines; loaded only if a line may show one."""
    if not any(_shows_a_machine(line) for line in lines):
        return ()
    from ddpdoctor.rules.views import line_rules

    is_selected = selection(request)
    return tuple(rule for rule in line_rules() if is_selected(rule.code))


def with_machines(report: Report, facts: Facts, rules: tuple[Rule, ...]) -> Report:
    """The report about lines, with what these rules find about the machines in them."""
    return extended(report, [judge(facts, rules)], rules) if rules else report


def _shows_a_machine(line: LaunchLine) -> bool:
    """A pod, a container, a scheduler's or a wrapper's limits, chosen GPUs, a rank, a store in a file, what is not exported."""
    return (
        line.pod is not None
        or bool(line.before)
        or not {"CUDA_VISIBLE_DEVICES", "RANK"}.isdisjoint(line.environ.variables)
        or any(layer.launcher in _LIMITING or layer.name in _BINDING for layer in line.layers)
        or any(sign in word.text for word in line.argv for sign in ("file://", "rdzv", "nccl"))
        or (line.script is not None and line.script.backend == "nccl")
    )


_LIMITING = (LauncherKind.CONTAINER, LauncherKind.SRUN, LauncherKind.SALLOC)
_BINDING = ("taskset", "numactl")


def facts_of(request: Request, nodes: Sequence[str], torch: str | None) -> Facts:
    """The facts: the launch lines, and the environment that they would start with."""
    from ddpdoctor.collectors.launch import collect_launch

    machine = this_machine(request.timeout or 30.0)
    launch = collect_launch(machine, request.launch, nodes, torch=torch, cwd=os.getcwd())
    return Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hostname=socket.gethostname().partition(".")[0],
        environ=environ_of(launch),
        launch=launch,
    )


def environ_of(launch: Launch) -> Environ:
    """The environment of the lines' innermost programs, the first line's if they differ, as far as it takes effect.

    What is not known is left out, and so are the variables that torchrun overwrites for its workers, and PET_ variables
    whose option is on the line.
    """
    variables: dict[str, str] = {}
    for line in reversed(launch.lines):
        without = set(OVERWRITTEN) if line.agent is not None else set()
        without |= {f"PET_{g.dest.upper()}" for g in line.agent.reading.given} if line.agent is not None else set()
        known = line.environ.variables.items()
        variables.update({name: value for name, value in known if UNKNOWN not in value and name not in without})
    return Environ(variables=variables)
