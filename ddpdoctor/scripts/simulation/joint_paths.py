"""Events that concern all ranks, and the simulations of the whole program."""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import islice

from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.simulation.entry_points import program_entry_points, rank_contexts
from ddpdoctor.scripts.simulation.events import COMPARED, WATCHED
from ddpdoctor.scripts.simulation.simulate import simulate
from ddpdoctor.scripts.simulation.subgroups import group_members, is_created_on_demand
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION, P2P

__all__ = [
    "COMMUNICATION",
    "WATCHED_CALLS",
    "is_default_group_collective",
    "is_rank_independent",
    "program_simulations",
]

MAX_PROGRAM_SIMULATIONS = 8
"""Most paths through one entry point of the program."""


def is_default_group_collective(event: Event) -> bool:
    """Whether an event is a collective of the default group."""
    if event.name not in COMPARED:
        return False
    if event.name.startswith("dist.new_"):
        flag = event.argument(None, "use_local_synchronization")
        return not is_created_on_demand(event) and (flag is None or event.read(flag) is False)
    position = GROUP_POSITION.get(event.name)
    group = event.argument(position, "group", "process_group", "pg", "device_mesh", "mesh")
    if any(k.arg is None for k in event.call.keywords):
        return False
    if isinstance(group, (ast.Attribute, ast.Call)) and event.frame.module.names.of(group) is None:
        return False  # a group from an object or a function: its members are not known
    return group is None or event.read(group) is None


COMMUNICATION = CallReach(frozenset(COMPARED | P2P))
"""Collectives, sends and receives."""
WATCHED_CALLS = CallReach(frozenset(WATCHED))
"""All calls that a simulation can record."""


def is_rank_independent(event: Event) -> bool:
    """Whether an event is equal on all ranks that execute it, such as the group that it creates or gets."""
    if any(k.arg is None for k in event.call.keywords):
        return False
    if event.name.startswith("dist.new_"):
        event.read(event.argument(0, "ranks"))
        return event.name == "dist.new_group" and not event.evaluator.depends_on_rank
    group = event.read(
        event.argument(GROUP_POSITION.get(event.name), "group", "process_group", "pg", "device_mesh", "mesh")
    )
    if isinstance(group, CallResult):
        group_members(event, group)
    return not event.evaluator.depends_on_rank


@lru_cache(maxsize=64)
def program_simulations(module: Module) -> tuple[Simulation, ...]:
    """Paths through the program and what it spawns, without those that an unknown value leaves open."""
    simulations: list[Simulation] = []
    for root in program_entry_points(module, WATCHED_CALLS):
        paths = simulate(module, root, rank_contexts(module, root), WATCHED_CALLS)
        simulations += [path for path in islice(paths, MAX_PROGRAM_SIMULATIONS) if not path.is_open]
    return tuple(simulations)
