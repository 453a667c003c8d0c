"""Simulates a function or a program: what each rank does, in order, through branches, loops, early exits and calls.

A `Simulation` is one path through the script with all ranks side by side: conditions that the source determines are evaluated
per rank, and the others are decided once for all ranks. With `data`, conditions on the data of a rank are true
on one rank and false on the others. A simulation that reached a condition which may differ between ranks in an unknown way,
around something relevant, is `open`: nothing can be concluded from it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import BranchChoices, BranchOracle
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import RankContext
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.simulation.rank_executor import RankExecutor
from ddpdoctor.scripts.simulation.rank_state import RankState
from ddpdoctor.scripts.simulation.trace import Event, RankTrace, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["simulate"]

MAX_SIMULATIONS = 12
"""Most paths through one root that are simulated."""
MAX_ATTEMPTS = 3
"""Most repetitions of one path with the decisions that later ranks added."""
MAX_STATEMENTS = 3000
"""Most statements that all paths through one root execute together; a root that needs more is abandoned."""


class _Setup(NamedTuple):
    """What is simulated: a root, by these ranks."""

    module: Module
    root: Function | ast.Module
    contexts: tuple[RankContext, ...]
    reach: CallReach
    is_rank_independent: Callable[[Event], bool] | None


def simulate(
    module: Module,
    root: Function | ast.Module,
    contexts: tuple[RankContext, ...],
    reach: CallReach,
    *,
    data: bool | None = None,
    is_rank_independent: Callable[[Event], bool] | None = None,
) -> Iterator[Simulation]:
    """The paths through a function, or through the module level as a program, at most `MAX_SIMULATIONS`.

    With `is_rank_independent`, a path on which nothing depends on the rank, and whose events all satisfy it, is executed by the
    first rank only.
    """
    setup = _Setup(module, root, contexts, reach, is_rank_independent)
    waiting: list[list[tuple[object, bool]]] = [[]]
    statements = 0
    for _ in range(MAX_SIMULATIONS):
        if not waiting or statements > MAX_STATEMENTS:
            return
        prefix = waiting.pop()
        choices = BranchChoices(prefix, data)
        simulation = _simulate_path(setup, choices)
        statements += choices.statements
        yield simulation
        for position in range(len(prefix), len(choices.order)):
            earlier = [(key, choices.taken[key]) for key in choices.order[:position]]
            waiting.append([*earlier, (choices.order[position], False)])


def _simulate_path(setup: _Setup, choices: BranchChoices) -> Simulation:
    """All ranks on one path.

    What a rank decides after it evaluated something that depends on the decision, the next ranks evaluate differently: if
    the ranks diverge, they start again with all decisions. If that adds decisions every time, the simulation is open.
    """
    for _ in range(MAX_ATTEMPTS):
        decided = len(choices.order)
        choices.statements = 0
        simulation = _execute_ranks(setup, choices)
        if len(choices.order) == decided or not simulation.diverges():
            return simulation
    simulation.is_open = True
    return simulation


def _execute_ranks(setup: _Setup, choices: BranchChoices) -> Simulation:
    traces = []
    is_open = False
    limit = MAX_STATEMENTS // len(setup.contexts)
    for context in setup.contexts:
        oracle = BranchOracle(choices, context)
        evaluator = RankEvaluator(setup.module, context, trusting=True, oracle=oracle)
        state = RankState(evaluator, RankTrace(context), setup.reach, limit)
        RankExecutor(setup.module, state, oracle.fails).root(setup.root)
        traces.append(state.trace)
        is_open |= state.is_open
        choices.statements += limit - state.statements_left
        if context is setup.contexts[0] and (is_open or _is_same_for_all(setup, choices, state)):
            choices.statements *= len(setup.contexts)
            break
    return Simulation(setup.module, setup.root, traces, is_open, choices.depends_on_data, choices.data)


def _is_same_for_all(setup: _Setup, choices: BranchChoices, state: RankState) -> bool:
    """Whether the other ranks would execute the same statements as the first one, with the same events."""
    if setup.is_rank_independent is None or choices.data is not None or state.evaluator.depends_on_rank:
        return False
    return all(setup.is_rank_independent(event) for event in state.trace.events)
