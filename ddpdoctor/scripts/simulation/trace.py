"""The result of a simulation: what each rank did, in order, and which conditions differed between ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import field

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import RankContext
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["BranchTest", "EarlyExit", "Event", "RankTrace", "Simulation"]


@dataclass(frozen=True, slots=True, eq=False)
class BranchTest:
    """A condition around an event: the statement, which branch was taken, and how many calls deep it is.

    `chosen`: the source does not determine it.
    """

    node: ast.AST
    taken: bool
    depth: int
    module: Module
    chosen: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One call that was executed. `chain` are the calls that led to it, from the root to the call itself."""

    name: str
    call: ast.Call
    frame: CallFrame
    evaluator: RankEvaluator
    chain: tuple[ast.Call, ...]
    tests: tuple[BranchTest, ...]
    loops: tuple[ast.AST, ...] = ()

    def argument(self, position: int | None, *names: str) -> ast.expr | None:
        """The expression passed for a parameter, by name or position."""
        for keyword in self.call.keywords:
            if keyword.arg in names:
                return keyword.value
        if position is not None and position < len(self.call.args):
            return self.call.args[position]
        return None

    def read(self, node: ast.expr | None) -> object:
        """The value of an expression on this rank at this call; None for None."""
        return None if node is None else self.evaluator.value(node, self.frame)


@dataclass(frozen=True, slots=True, eq=False)
class EarlyExit:
    """A rank left its block or the process early, inside of `loops`. `how` is return, break, continue, exit or raise.

    `depth` is how many calls deep it is: a return leaves only its own function.
    """

    how: str
    node: ast.AST
    tests: tuple[BranchTest, ...]
    loops: tuple[ast.AST, ...] = ()
    depth: int = 0

    @property
    def reasons(self) -> tuple[BranchTest, ...]:
        """The conditions around it that decide whether the rest of the block is executed."""
        return self.tests if self.how in ("exit", "raise") else tuple(t for t in self.tests if t.depth == self.depth)


@dataclass(slots=True, eq=False)
class RankTrace:
    """What one rank did. `decisions` are the branches that it took of each condition; `unknown_calls` are calls in branches whose
    source was not read, by name."""

    context: RankContext
    events: list[Event] = field(default_factory=list)
    early_exits: list[EarlyExit] = field(default_factory=list)
    decisions: dict[ast.AST, list[bool]] = field(default_factory=dict)
    unknown_calls: list[tuple[str, tuple[BranchTest, ...]]] = field(default_factory=list)
    raised: bool = False


@dataclass(slots=True, eq=False)
class Simulation:
    """One path through a root with all ranks side by side."""

    module: Module
    root: ast.AST
    traces: list[RankTrace]
    is_open: bool = False
    depends_on_data: bool = False
    data: bool | None = None

    def diverges(self) -> bool:
        """Whether any condition differed between the ranks."""
        return any(self.differs(node) for node in {n for t in self.traces for n in t.decisions})

    def differs(self, node: ast.AST) -> bool:
        """Whether a condition differed between the ranks."""
        by_rank = [t.decisions[node] for t in self.traces if node in t.decisions]
        outcomes = {frozenset(decisions) for decisions in by_rank}
        is_mixed = frozenset((True, False)) in outcomes
        return len(outcomes) > 1 or (is_mixed and any(decisions != by_rank[0] for decisions in by_rank))

    def divergent(self, tests: Iterable[BranchTest]) -> list[BranchTest]:
        """The conditions that differed between the ranks, outermost first."""
        return [t for t in tests if self.differs(t.node)]
