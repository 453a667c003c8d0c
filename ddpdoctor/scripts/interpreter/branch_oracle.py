"""Decisions about conditions that the source does not determine: equal on all ranks of a simulation, different in the next."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import NamedTuple

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.simulated_job import RankContext
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["BranchChoices", "BranchOracle", "Decision", "Preconditions"]

_ALWAYS = "always"
"""The key of a condition that is decided the same way in every simulation."""


@lru_cache(maxsize=4096)
def _condition_key(node: ast.expr) -> str:
    """The source of a condition: equal conditions get the same decision wherever they are. Cached, because it is used often."""
    return ast.dump(node)


class Decision(NamedTuple):
    """The answer for a condition, None if it is still undecided. `key` is None where a rank's own data decided."""

    key: object
    is_data: bool
    answer: bool | None


class Preconditions(NamedTuple):
    """The decisions that a cached value depends on: those taken, and the keys that must be undecided (`open`)."""

    made: tuple[tuple[object, bool], ...]
    open: frozenset[object]
    asks_data: bool
    on_data: frozenset[bool | None]

    @classmethod
    def of(cls, decisions: list[Decision]) -> Preconditions:
        """The preconditions of a value that was evaluated with these decisions."""
        return cls(
            tuple((d.key, d.answer) for d in decisions if d.key is not None and d.answer is not None),
            frozenset(d.key for d in decisions if d.key is not None and d.answer is None),
            any(d.is_data for d in decisions),
            frozenset(d.answer for d in decisions if d.key is None),
        )


class BranchChoices:
    """The decisions of one simulation, shared by all its ranks.

    `order` are the keys in the order in which they were decided. `data`: whether conditions on a rank's own data hold for
    rank 0 only (True), for all others (False), or are decided like any other condition (None).
    """

    def __init__(self, prefix: list[tuple[object, bool]], data: bool | None) -> None:
        self.taken = dict(prefix)
        self.order = [key for key, _ in prefix]
        self.data = data
        self.depends_on_data = False
        self.statements = 0


class BranchOracle:
    """The decisions as one rank sees them."""

    def __init__(self, choices: BranchChoices, context: RankContext) -> None:
        self.choices = choices
        self.context = context

    def fails(self) -> bool:
        """Whether only this rank gets an exception that depends on its own data or machine."""
        self.choices.depends_on_data = True
        return self._data_answer() is True

    def _data_answer(self) -> bool | None:
        data = self.choices.data
        return None if data is None else (self.context.rank == 0) is data

    def choose(self, module: Module, node: ast.expr, unknown: Unknown, *, decides: bool) -> Decision | None:
        """The decision for a condition; a new decision is made only if it `decides` a branch of the simulation itself.

        None if there is nothing to decide: the ranks differ in an unknown way.
        """
        if unknown is Unknown.VARIES:
            return None
        choices, is_data = self.choices, unknown is Unknown.DATA
        if is_data:
            choices.depends_on_data = True
            if choices.data is not None:
                return Decision(None, True, self._data_answer())
        is_distributed = assumptions.tests_for_several_ranks(node)
        if is_distributed is not None:
            return Decision(_ALWAYS, is_data, is_distributed)
        key: object = _condition_key(node)
        if isinstance(node, ast.Name):
            key = (id(module.index.function_of(node)), key)
        if decides and key not in choices.taken:
            choices.taken[key] = True
            choices.order.append(key)
        return Decision(key, is_data, choices.taken.get(key))

    def agrees(self, preconditions: Preconditions) -> bool:
        """Whether a value that was cached with these preconditions is also valid for this rank."""
        choices = self.choices
        if preconditions.on_data and preconditions.on_data != {self._data_answer()}:
            return False
        if preconditions.asks_data and not preconditions.on_data and choices.data is not None:
            return False
        if not all(key is _ALWAYS or choices.taken.get(key) is answer for key, answer in preconditions.made):
            return False
        if not preconditions.open.isdisjoint(choices.taken):
            return False
        choices.depends_on_data |= preconditions.asks_data
        return True
