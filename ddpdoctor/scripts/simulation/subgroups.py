"""Subgroups: the ranks of a group that the script creates, and the collectives of that group."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.events import COMPARED
from ddpdoctor.scripts.simulation.trace import Event, RankTrace, Simulation
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

__all__ = ["group_members", "groups_of", "is_created_on_demand"]

_REPEATS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension, ast.ListComp, ast.DictComp, ast.GeneratorExp)


def groups_of(simulation: Simulation) -> Iterator[tuple[list[RankTrace], Callable[[Event], bool]]]:
    """For each group, the traces of its members and whether an event is a collective of that group."""
    groups: dict[CallResult, set[tuple[int, ...] | None]] = {}
    for event in (e for trace in simulation.traces for e in trace.events):
        made = _group(event)
        if made is not None:
            groups.setdefault(made, set()).add(group_members(event, made))
    for made, several in groups.items():
        members = several.pop() if len(several) == 1 else None
        if members is not None and max(members) < len(simulation.traces):
            yield [simulation.traces[rank] for rank in members], partial(_is_of, made)


def _group(event: Event) -> CallResult | None:
    """The call of new_group whose result is passed to a collective."""
    if event.name not in COMPARED:
        return None
    given = event.argument(GROUP_POSITION.get(event.name), "group", "process_group", "pg")
    made = event.read(given)
    return made if isinstance(made, CallResult) and made.name == "dist.new_group" else None


def _is_of(made: CallResult, event: Event) -> bool:
    return _group(event) == made


def group_members(event: Event, made: CallResult) -> tuple[int, ...] | None:
    """The ranks of a group; None if they are not known, or one line creates several groups."""
    index = made.frame.module.index
    if any(isinstance(parent, _REPEATS) for parent, _ in index.enclosing(made.call)):
        return None
    given = [*(k.value for k in made.call.keywords if k.arg == "ranks"), *made.call.args]
    ranks = event.evaluator.value(given[0], made.frame) if given else None
    if not isinstance(ranks, (list, tuple)) or len(ranks) < 2 or any(type(r) is not int or r < 0 for r in ranks):
        return None
    return tuple(sorted({int(r) for r in ranks}))


def is_created_on_demand(event: Event) -> bool:
    """`if key not in GROUPS: GROUPS[key] = new_group(…)`: all ranks may have created the group earlier, in other code."""
    for test in event.tests:
        condition = test.node.test if isinstance(test.node, ast.If) and test.chosen else None
        if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.NotIn):
            container = ast.dump(condition.comparators[0])
            stores = [n for n in ast.walk(test.node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
            if any(ast.dump(n.value) == container for n in stores):
                return True
    return False
