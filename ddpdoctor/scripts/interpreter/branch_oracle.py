"""What is chosen for conditions that nobody knows: the same for all ranks of one rehearsal, another in the next."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.simulated_job import RankContext, Unknown
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["BranchChoices", "BranchOracle", "Decision", "Preconditions"]

_ALWAYS = "always"
"""The key of a condition whose answer is the same in every run."""


@lru_cache(maxsize=4096)
def _text(node: ast.expr) -> str:
    """What a condition says, wherever it stands: the same words are chosen alike. Each node is asked for many times."""
    return ast.dump(node)


_COUNTS = re.compile(
    r"(?i)^(num|n|total)_?(gpus?|procs?|process(es)?|devices?|ranks?|replicas)$|^((distributed_|dist_)?world_?size|nprocs?|ngpus?)$"
)


@lru_cache(maxsize=4096)
def _asks_for_many(node: ast.expr) -> bool | None:
    """The truth of `num_gpus > 1` and its likes where ranks are told apart; None for another condition."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    left, right = node.left, node.comparators[0]
    name = left.attr if isinstance(left, ast.Attribute) else getattr(left, "id", "")
    if not isinstance(right, ast.Constant) or right.value != 1 or not _COUNTS.match(name):
        return None
    return {ast.Gt: True, ast.NotEq: True, ast.Eq: False, ast.LtE: False}.get(type(node.ops[0]))


class Decision(NamedTuple):
    """A condition and what was chosen for it; `key` is None where a rank's own data decided."""

    key: object
    is_data: bool
    answer: bool | None


class Preconditions(NamedTuple):
    """What must be chosen, and what must not, for a value to hold."""

    made: tuple[tuple[object, bool], ...]
    open: frozenset[object]
    asks_data: bool
    on_data: frozenset[bool | None]

    @classmethod
    def of(cls, asked: list[Decision]) -> Preconditions:
        """The terms of a value that asked for these."""
        return cls(
            tuple((each.key, each.answer) for each in asked if each.key is not None and each.answer is not None),
            frozenset(each.key for each in asked if each.key is not None and each.answer is None),
            any(each.is_data for each in asked),
            frozenset(each.answer for each in asked if each.key is None),
        )


class BranchChoices:
    """What was chosen for conditions that nobody knows, the same for all ranks of a run."""

    def __init__(self, prefix: list[tuple[object, bool]], data: bool | None) -> None:
        self.taken = dict(prefix)
        self.order = [key for key, _ in prefix]
        self.data = data
        self.depends_on_data = False
        self.statements = 0


class BranchOracle:
    """The choices as one rank takes them."""

    def __init__(self, choices: BranchChoices, context: RankContext) -> None:
        self.choices = choices
        self.context = context

    def fails(self) -> bool:
        """Whether this rank alone meets an error that its own data or machine makes."""
        self.choices.depends_on_data = True
        return self._of_data() is True

    def _of_data(self) -> bool | None:
        data = self.choices.data
        return None if data is None else (self.context.rank == 0) is data

    def choose(self, module: Module, node: ast.expr, unknown: Unknown, *, decides: bool) -> Decision | None:
        """The choice for a condition; one that decides no branch of the walk itself only follows earlier choices.

        None where there is nothing to choose: ranks differ in a way that nobody knows.
        """
        if unknown is Unknown.VARIES:
            return None
        choices, is_data = self.choices, unknown is Unknown.DATA
        if is_data:
            choices.depends_on_data = True
            if choices.data is not None:
                return Decision(None, True, self._of_data())
        many = _asks_for_many(node)
        if many is not None:
            return Decision(_ALWAYS, is_data, many)
        key: object = _text(node)
        if isinstance(node, ast.Name):
            key = (id(module.index.function_of(node)), key)
        if decides and key not in choices.taken:
            choices.taken[key] = True
            choices.order.append(key)
        return Decision(key, is_data, choices.taken.get(key))

    def agrees(self, terms: Preconditions) -> bool:
        """Whether a value that was read on these terms holds here, too."""
        choices = self.choices
        if terms.on_data and terms.on_data != {self._of_data()}:
            return False
        if terms.asks_data and not terms.on_data and choices.data is not None:
            return False
        if not all(key is _ALWAYS or choices.taken.get(key) is answer for key, answer in terms.made):
            return False
        if not terms.open.isdisjoint(choices.taken):
            return False
        choices.depends_on_data |= terms.asks_data
        return True
