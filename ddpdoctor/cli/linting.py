"""What `lint` judges: the facts of launch lines, and the rules that need nothing but a line and its environment."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

from ddpdoctor.cli.options import Common
from ddpdoctor.cli.settings import rules_for
from ddpdoctor.collectors.machine import this_machine
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch import UNKNOWN, Launch
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.rules import Rule

__all__ = ["AREAS", "facts_of", "rules_of"]

AREAS = ("environ", "launch")

_OF_A_PROCESS = ("ENV001", "ENV002", "ENV003", "ENV004", "ENV005", "ENV006", "ENV007", "ENV008", "ENV066")
"""Rules about the ranks of a running process: a launch line has none yet."""


def rules_of(common: Common) -> tuple[Rule, ...]:
    """The selected rules that can be judged from a line: those of the environment and of launches."""
    return tuple(
        each
        for each in rules_for(common, AREAS)
        if each.code not in _OF_A_PROCESS
        and not each.code.startswith("ENV50")
        and set(each.needs) <= {"environ", "launch"}
    )


def facts_of(common: Common, nodes: Sequence[str], torch: str | None) -> Facts:
    """The facts: the launch lines, and the environment that they would start with."""
    if common.facts is not None:
        from ddpdoctor.cli.reading import load_facts

        return load_facts(common.facts)
    from ddpdoctor.collectors.launch import collect_launch

    machine = this_machine(common.timeout or 30.0)
    launch = collect_launch(machine, common.launch, nodes, torch=torch, cwd=os.getcwd())
    return Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hostname=socket.gethostname().partition(".")[0],
        environ=environ_of(launch),
        launch=launch,
    )


def environ_of(launch: Launch) -> Environ:
    """The environment of the first line's innermost program, without what is not known."""
    if not launch.lines:
        return Environ()
    variables = launch.lines[0].environ.variables
    return Environ(variables={name: value for name, value in variables.items() if UNKNOWN not in value})
