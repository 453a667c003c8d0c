"""Values shared between evaluators: a cached value is reused if everything that it depends on is the same.

Each rank of each simulation has its own evaluator, and most values are equal on all ranks: a path, a
backend, a condition on the configuration. What a value depends on is recorded while it is evaluated. One that depends on the
arguments of a call is reused for calls with the same expressions; one that depends on what was evaluated just before, such
as the limit of one evaluation, is not reused.
"""

from __future__ import annotations

import ast
from enum import Enum
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import BranchOracle, Decision, Preconditions
from ddpdoctor.scripts.interpreter.frames import CacheContext, CachedValue, CacheShelf, CallFrame, DeferredArgument
from ddpdoctor.scripts.interpreter.simulated_job import RankContext

__all__ = ["CacheKey", "Dependency", "recall", "store"]

MAX_ENTRIES = 8
"""Cached values of one expression, for different decisions."""


class Dependency(Enum):
    """What a value depends on besides its source and the decisions about branches."""

    RANK = 1
    """The rank that evaluates it."""
    JOB = 2
    """The job that the rank is in."""
    QUESTION = 3
    """What was evaluated just before: the value is valid for this evaluation only."""


class CacheKey(NamedTuple):
    """The evaluator that looks a value up: whether it trusts names, as which rank, with which decisions."""

    trusting: bool
    context: RankContext
    oracle: BranchOracle | None


_COMPARABLE = (int, str, type(None))
"""Argument types whose values let frames share a shelf."""


def _cache_context(key: CacheKey, frame: CallFrame) -> CacheContext:
    if frame.cache_context is None:
        shelves = frame.module.cache.setdefault("values", {})
        arguments: set[object] = set()
        frames = {frame}
        is_shared = True
        for name, value in frame.bound.items():
            if isinstance(value, DeferredArgument):
                caller = _cache_context(key, value.frame)
                frames |= caller.frames
                arguments.add((name, value.node, caller.same_arguments))
                is_shared &= caller.is_shared
            else:
                is_shared &= isinstance(value, _COMPARABLE)
                arguments.add((name, type(value), value if is_shared else None))
        base = (key.trusting, key.oracle is None, frame.function)
        any_arguments = shelves.setdefault((*base, frozenset(frame.bound)), CacheShelf())
        same_arguments = shelves.setdefault((*base, frozenset(arguments)), CacheShelf()) if is_shared else CacheShelf()
        frame.cache_context = CacheContext(any_arguments, same_arguments, is_shared, frozenset(frames))
    return frame.cache_context


def recall(key: CacheKey, node: ast.expr, frame: CallFrame) -> CachedValue | None:
    """The value that another evaluator cached, if this one would get the same value."""
    cache = frame.cache_context or _cache_context(key, frame)
    context, oracle = key.context, key.oracle
    for shelf in (cache.any_arguments, cache.same_arguments):
        for holder, preconditions, cached in shelf.entries.get(node, ()):
            is_valid = holder is None or holder is context or holder is context.job
            if is_valid and (oracle is None or oracle.agrees(preconditions)):
                if shelf is cache.any_arguments:
                    return cached
                return CachedValue(cached.value, cached.dependencies | cache.frames)
    return None


def store(key: CacheKey, node: ast.expr, frame: CallFrame, cached: CachedValue) -> None:
    """Cache a value for other evaluators, unless it depends on something that only this evaluator has."""
    cache = _cache_context(key, frame)
    dependencies = cached.dependencies
    decisions = [d for d in dependencies if isinstance(d, Decision)]
    frames = dependencies.difference(decisions, (Dependency.RANK, Dependency.JOB))
    if not frames <= cache.frames:
        return
    entries = (cache.same_arguments if frames else cache.any_arguments).entries.setdefault(node, [])
    if len(entries) >= MAX_ENTRIES:
        del entries[0]
    context = key.context
    holder = context if Dependency.RANK in dependencies else context.job if Dependency.JOB in dependencies else None
    entries.append((holder, Preconditions.of(decisions), CachedValue(cached.value, dependencies - frames)))
