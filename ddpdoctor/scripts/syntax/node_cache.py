"""A cache of results per node of a module, which lives as long as the module."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

__all__ = ["HasNodeCache", "NodeCache", "cached_per_node"]

NodeCache = dict[object, dict[Any, Any]]
"""For each cached function, its results by node."""


class HasNodeCache(Protocol):
    """A module: `cache` holds results about its nodes."""

    @property
    def cache(self) -> NodeCache: ...


M = TypeVar("M", bound=HasNodeCache)
N = TypeVar("N", bound=ast.AST | None)
T = TypeVar("T")


def cached_per_node(question: Callable[[M, N], T]) -> Callable[[M, N], T]:
    """Compute the result for a node of a module once; it must not depend on anything else."""

    @wraps(question)
    def answer(module: M, node: N) -> T:
        answers = module.cache.get(question)
        if answers is None:
            answers = module.cache[question] = {}
        if node not in answers:
            answers[node] = question(module, node)
        known: T = answers[node]
        return known

    return answer
