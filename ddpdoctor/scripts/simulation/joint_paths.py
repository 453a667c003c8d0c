"""What ranks do together: the events that concern all of them, and the ways through the program on which nothing is open."""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import islice

from ddpdoctor.scripts.interpreter.simulated_job import Made
from ddpdoctor.scripts.simulation.communication_reach import Matters
from ddpdoctor.scripts.simulation.entry_points import places_of, programs
from ddpdoctor.scripts.simulation.events import COMPARED, WATCHED
from ddpdoctor.scripts.simulation.simulate import rehearse
from ddpdoctor.scripts.simulation.subgroups import is_kept, members_of
from ddpdoctor.scripts.simulation.trace import Event, Rehearsal
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION, P2P

__all__ = ["is_alike", "is_of_all", "matters_of", "program_runs"]

MAX_PROGRAM_RUNS = 8


def is_of_all(event: Event) -> bool:
    """Whether an event is a collective of the default group."""
    if event.name not in COMPARED:
        return False
    if event.name.startswith("dist.new_"):
        flag = event.argument(None, "use_local_synchronization")
        return not is_kept(event) and (flag is None or event.read(flag) is False)
    position = GROUP_POSITION.get(event.name)
    group = event.argument(position, "group", "process_group", "pg", "device_mesh", "mesh")
    if any(k.arg is None for k in event.call.keywords):
        return False
    if isinstance(group, (ast.Attribute, ast.Call)) and event.frame.module.names.of(group) is None:
        return False  # a group that an object keeps or a function gives: who is in it stands elsewhere
    return group is None or event.read(group) is None


_MATTERS = {everything: Matters(frozenset(WATCHED if everything else COMPARED | P2P)) for everything in (False, True)}


def matters_of(module: Module, *, everything: bool = False) -> Matters:
    """What functions do: of what ranks do together and send each other, or of all that is watched."""
    return _MATTERS[everything]


def is_alike(event: Event) -> bool:
    """Whether an event is the same for all ranks that come to it: the group that it makes or is given."""
    if any(k.arg is None for k in event.call.keywords):
        return False
    if event.name.startswith("dist.new_"):
        event.read(event.argument(0, "ranks"))
        return event.name == "dist.new_group" and not event.reader.is_of_place
    group = event.read(
        event.argument(GROUP_POSITION.get(event.name), "group", "process_group", "pg", "device_mesh", "mesh")
    )
    if isinstance(group, Made):
        members_of(event, group)
    return not event.reader.is_of_place


@lru_cache(maxsize=64)
def program_runs(module: Module) -> tuple[Rehearsal, ...]:
    """Ways through the program itself and what it spawns, those that nothing unknown leaves open."""
    found = []
    matters = matters_of(module, everything=True)
    for root in programs(module, matters):
        runs = rehearse(module, root, places_of(module, root), matters)
        found += [run for run in islice(runs, MAX_PROGRAM_RUNS) if not run.is_open]
    return tuple(found)
