"""What is chosen for conditions that nobody knows: the same for all ranks of one rehearsal, another in the next."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from ddpdoctor.facts.script.module import Module
from ddpdoctor.facts.script.world import Place, Unknown

__all__ = ["Choices"]


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


class Choices:
    """What was chosen for conditions that nobody knows, the same for all ranks of a run."""

    def __init__(self, prefix: list[tuple[object, bool]], data: bool | None) -> None:
        self.taken = dict(prefix)
        self.order = [key for key, _ in prefix]
        self.data = data
        self.asked_data = False
        self.statements = 0

    def fails(self, place: Place) -> bool:
        """Whether this rank alone meets an error that its own data or machine makes."""
        self.asked_data = True
        return self.data is not None and (place.rank == 0) is self.data

    def choose(self, module: Module, node: ast.expr, place: Place, unknown: Unknown, *, decides: bool) -> bool | None:
        """The choice for a condition; one that decides no branch of the walk itself only follows earlier choices."""
        if unknown is Unknown.VARIES:
            return None
        if unknown is Unknown.DATA:
            self.asked_data = True
            if self.data is not None:
                return (place.rank == 0) is self.data
        many = _asks_for_many(node)
        if many is not None:
            return many
        key: object = _text(node)
        if isinstance(node, ast.Name):
            key = (id(module.index.function_of(node)), key)
        if not decides:
            return self.taken.get(key)
        if key not in self.taken:
            self.taken[key] = True
            self.order.append(key)
        return self.taken[key]
