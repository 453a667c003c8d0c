"""Remembering what was found out about a node of a module, as long as the module itself is remembered."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

__all__ = ["Remembers", "once"]


class Remembers(Protocol):
    """A module: `memory` holds the answers of each question by the node that it was asked about."""

    memory: dict[object, dict[Any, Any]]


M = TypeVar("M", bound=Remembers)
N = TypeVar("N", bound=ast.AST | None)
T = TypeVar("T")


def once(work: Callable[[M, N], T]) -> Callable[[M, N], T]:
    """A question about a node of a module is answered once; the answer must not depend on anything else."""

    @wraps(work)
    def answer(module: M, node: N) -> T:
        answers = module.memory.get(work)
        if answers is None:
            answers = module.memory[work] = {}
        if node not in answers:
            answers[node] = work(module, node)
        found: T = answers[node]
        return found

    return answer
