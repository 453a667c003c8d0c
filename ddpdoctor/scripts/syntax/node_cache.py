"""A cache of answers about the nodes of a module: it lives as long as the module is cached itself."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

__all__ = ["HasNodeCache", "NodeCache", "cached_per_node"]

NodeCache = dict[object, dict[Any, Any]]
"""For each question (the function that answers it), the answers by node."""


class HasNodeCache(Protocol):
    """A module: `cache` holds what was found out about its nodes."""

    @property
    def cache(self) -> NodeCache: ...


M = TypeVar("M", bound=HasNodeCache)
N = TypeVar("N", bound=ast.AST | None)
T = TypeVar("T")


def cached_per_node(question: Callable[[M, N], T]) -> Callable[[M, N], T]:
    """Compute the answer about a node of a module once; the answer must not depend on anything else."""

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
