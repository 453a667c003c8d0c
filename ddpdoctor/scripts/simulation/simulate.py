"""Rehearses statements: what each rank does, in its order, through branches, loops, early exits and calls.

A `Rehearsal` is one way through a function with all ranks side by side: conditions that the text decides go each rank's
own way, and what it does not tell is chosen once for all of them. Conditions on a rank's own data are taken by one rank
and not by the others when `data` asks for it. A rehearsal that met a condition which may differ between ranks in an unknown
way, around something that matters, is `open`: nothing can be said of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import BranchChoices, BranchOracle
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, RankContext
from ddpdoctor.scripts.interpreter.values import RankEvaluator
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.simulation.rank_executor import RankExecutor
from ddpdoctor.scripts.simulation.trace import Event, RankTrace, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["simulate"]

MAX_RUNS = 12
MAX_ATTEMPTS = 3
MAX_STATEMENTS = 3000
"""Statements that all ways through one root may take together; a root that takes more is left alone."""


class _Setup(NamedTuple):
    """What is rehearsed: a root, by these ranks."""

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
    """The ways through a function, or through the module's own level as a program, up to a number.

    With `is_alike`, a way on which nothing depends on the rank, and whose events are all alike for all ranks, is walked by
    the first rank alone.
    """
    setup = _Setup(module, root, contexts, reach, is_rank_independent)
    waiting: list[list[tuple[object, bool]]] = [[]]
    statements = 0
    for _ in range(MAX_RUNS):
        if not waiting or statements > MAX_STATEMENTS:
            return
        prefix = waiting.pop()
        choices = BranchChoices(prefix, data)
        run = _run(setup, choices)
        statements += choices.statements
        yield run
        for at in range(len(prefix), len(choices.order)):
            earlier = [(key, choices.taken[key]) for key in choices.order[:at]]
            waiting.append([*earlier, (choices.order[at], False)])


def _run(setup: _Setup, choices: BranchChoices) -> Simulation:
    """All ranks on one way. What a rank chose after it had read what depends on it, the next ranks read otherwise: where
    their ways part, they start again with all that was chosen. Where there is always more to choose, the way is open."""
    for _ in range(MAX_ATTEMPTS):
        chosen = len(choices.order)
        choices.statements = 0
        run = _all(setup, choices)
        if len(choices.order) == chosen or not run.diverges():
            return run
    run.is_open = True
    return run


def _all(setup: _Setup, choices: BranchChoices) -> Simulation:
    traces = []
    is_open = False
    limit = MAX_STATEMENTS // len(setup.contexts)
    for context in setup.contexts:
        oracle = BranchOracle(choices, context)
        evaluator = RankEvaluator(setup.module, context, trusting=True, oracle=oracle)
        walk = RankExecutor(setup.module, evaluator, RankTrace(context), setup.reach, limit)
        walk.fails = oracle.fails
        function = None if isinstance(setup.root, ast.Module) else setup.root
        walk.root(setup.root, CallFrame(setup.module, function, walk.given(function)))
        traces.append(walk.trace)
        is_open |= walk.is_open
        choices.statements += limit - walk.left
        if context is setup.contexts[0] and (is_open or _is_for_all(setup, choices, evaluator, walk.trace)):
            choices.statements *= len(setup.contexts)
            break
    return Simulation(setup.module, setup.root, traces, is_open, choices.depends_on_data, choices.data)


def _is_for_all(setup: _Setup, choices: BranchChoices, evaluator: RankEvaluator, trace: RankTrace) -> bool:
    """Whether the other ranks would go the first one's way, to events that are the same for them."""
    if setup.is_rank_independent is None or choices.data is not None or evaluator.depends_on_rank:
        return False
    return all(setup.is_rank_independent(event) for event in trace.events)
