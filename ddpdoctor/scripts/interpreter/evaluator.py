"""The interface of an evaluator: what the modules for single kinds of expressions need."""

from __future__ import annotations

import ast
from typing import Protocol

from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.interpreter.simulated_job import RankContext, SimulatedJob
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["Evaluator"]


class Evaluator(Protocol):
    """Evaluates expressions as one rank of the simulated job. `RankEvaluator` implements it."""

    @property
    def trusting(self) -> bool:
        """Whether names are evidence: a parameter called `rank` that nothing assigns is the rank."""

    @property
    def context(self) -> RankContext:
        """The rank; the value being evaluated then depends on it."""

    @property
    def job(self) -> SimulatedJob:
        """The job; the value being evaluated then depends on it."""

    def rank_property(self, name: str) -> object:
        """A number of the rank's identity by its name in the tables of `assumptions` and `vocabulary`."""

    def value(self, node: ast.expr, frame: CallFrame | None = None) -> object:
        """The value of an expression, or Unknown."""

    def differs_by_rank(self, node: ast.expr, frame: CallFrame) -> bool:
        """Whether the value of an expression depends on which rank evaluates it."""

    def truth(self, node: ast.expr, frame: CallFrame | None = None) -> bool | Unknown:
        """The truth of a condition, or Unknown."""

    def frame_of(self, node: ast.AST, module: Module | None = None) -> CallFrame:
        """The frame of a node that is evaluated on its own."""

    def returned(self, module: Module, function: Function, bound: dict[str, object]) -> object:
        """The value that a function returns for these arguments."""

    def copied_frame(self, copy: CallFrame, frame: CallFrame) -> None:
        """Record a dependency on a copy of a frame as one on the frame."""
