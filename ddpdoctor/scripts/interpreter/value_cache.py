"""What one reader read, kept for the next: a value holds wherever all that it leans on is the same.

Each rank of each rehearsal has a reader of its own, and most of what they read is the same for all: a path, a backend, a
condition on the configuration. A value notes what it leans on while it is read. One that leans on the arguments of a call
is kept for calls with the same expressions; one that leans on what was read just before, as a limit of one question, is not.
"""

from __future__ import annotations

import ast
from enum import Enum
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import BranchOracle, Decision, Preconditions
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, DeferredArgument, RankContext, SimulatedJob

__all__ = ["CachedValue", "Dependency", "keep", "recall"]

MAX_KEPT = 8
"""Values of one expression, for other answers to what was asked."""


class Dependency(Enum):
    """What a value depends on beside its text and what was chosen."""

    RANK = 1
    """The rank that reads it."""
    JOB = 2
    """The job that the rank is in."""
    QUESTION = 3
    """What was read just before: it holds for this question only."""


class CachedValue(NamedTuple):
    """A value and what it leans on: a `Lean`, an `Asked`, or a key of what is being read, a frame or a cycle."""

    value: object
    dependencies: frozenset[object]


_PLAIN = (int, str, type(None))


class CacheShelf:
    """What is kept: the values of an expression, with the rank or job and the choices that they hold for."""

    def __init__(self) -> None:
        self.kept: dict[ast.expr, list[tuple[RankContext | SimulatedJob | None, Preconditions, CachedValue]]] = {}


class CacheContext(NamedTuple):
    """Where expressions of a function are read: what is kept whatever its parameters hold, and what only where they
    hold the same expressions of the same callers, or in this frame alone where one holds something else; `frames` are this
    one and those of the callers.
    """

    anyhow: CacheShelf
    here: CacheShelf
    is_told: bool
    frames: frozenset[CallFrame]


def _cache_context(trusting: bool, oracle: BranchOracle | None, frame: CallFrame) -> CacheContext:
    if frame.cache_context is None:
        shelves: dict[object, CacheShelf] = frame.module.cache.setdefault("read", {})
        given: set[object] = set()
        frames = {frame}
        is_told = True
        for name, value in frame.bound.items():
            if isinstance(value, DeferredArgument):
                caller = _cache_context(trusting, oracle, value.frame)
                frames |= caller.frames
                given.add((name, value.node, caller.here))
                is_told &= caller.is_told
            else:
                is_told &= isinstance(value, _PLAIN)
                given.add((name, type(value), value if is_told else None))
        key = (trusting, oracle is None, frame.function)
        anyhow = shelves.setdefault((*key, frozenset(frame.bound)), CacheShelf())
        here = shelves.setdefault((*key, frozenset(given)), CacheShelf()) if is_told else CacheShelf()
        frame.cache_context = CacheContext(anyhow, here, is_told, frozenset(frames))
    return frame.cache_context


def recall(
    trusting: bool, context: RankContext, oracle: BranchOracle | None, node: ast.expr, frame: CallFrame
) -> CachedValue | None:
    """What another reader found, when this one would find the same."""
    cache_context = _cache_context(trusting, oracle, frame)
    for shelf in (cache_context.anyhow, cache_context.here):
        for at, terms, read in shelf.kept.get(node, ()):
            if (at is None or at is context or at is context.job) and (oracle is None or oracle.agrees(terms)):
                return (
                    read
                    if shelf is cache_context.anyhow
                    else CachedValue(read.value, read.dependencies | cache_context.frames)
                )
    return None


def keep(
    trusting: bool,
    context: RankContext,
    oracle: BranchOracle | None,
    node: ast.expr,
    frame: CallFrame,
    read: CachedValue,
) -> None:
    """Keep a value for other readers, if it leans on nothing that only this one has."""
    cache_context = _cache_context(trusting, oracle, frame)
    asked = [each for each in read.dependencies if isinstance(each, Decision)]
    others = read.dependencies.difference(asked, (Dependency.RANK, Dependency.JOB))
    if not others <= cache_context.frames:
        return
    kept = (cache_context.here if others else cache_context.anyhow).kept.setdefault(node, [])
    if len(kept) >= MAX_KEPT:
        del kept[0]
    at = (
        context
        if Dependency.RANK in read.dependencies
        else context.job
        if Dependency.JOB in read.dependencies
        else None
    )
    kept.append((at, Preconditions.of(asked), CachedValue(read.value, read.dependencies - others)))
