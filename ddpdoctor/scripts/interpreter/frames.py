"""Where expressions are evaluated: a frame with the arguments of its function, and the values that were cached for it."""

from __future__ import annotations

import ast
from dataclasses import field
from typing import NamedTuple

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.branch_oracle import Preconditions
from ddpdoctor.scripts.interpreter.simulated_job import RankContext, SimulatedJob
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["CacheContext", "CacheShelf", "CachedValue", "CallFrame", "CallResult", "DeferredArgument"]


class CachedValue(NamedTuple):
    """A value and what it depends on: a `Dependency`, a `Decision`, a frame, or the key of an evaluation in progress."""

    value: object
    dependencies: frozenset[object]


class CacheShelf:
    """Cached values by expression, each with the rank or job (None: any) and the preconditions that it holds for."""

    def __init__(self) -> None:
        self.entries: dict[ast.expr, list[tuple[RankContext | SimulatedJob | None, Preconditions, CachedValue]]] = {}


class CacheContext(NamedTuple):
    """Where the values of a frame are cached.

    `any_arguments` holds values that do not depend on the arguments; `same_arguments` those that hold only for the same argument
    expressions of the same callers, or in this frame only, unless `is_shared`. `frames` are this frame and those of its callers.
    """

    any_arguments: CacheShelf
    same_arguments: CacheShelf
    is_shared: bool
    frames: frozenset[CallFrame]


@dataclass(slots=True, eq=False)
class CallFrame:
    """A function call (`function` None: the module's own level) with its arguments by parameter name.

    `values` are the expressions already evaluated there, `cache_context` is where they are cached for other frames.
    """

    module: Module
    function: Function | None = None
    bound: dict[str, object] = field(default_factory=dict)
    values: dict[ast.expr, CachedValue] = field(default_factory=dict)
    cache_context: CacheContext | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeferredArgument:
    """An argument that is evaluated, in the caller's frame, when the parameter is read."""

    node: ast.expr
    frame: CallFrame


@dataclass(frozen=True, slots=True, eq=False)
class CallResult:
    """What a call of a library function returned; `name` is its short name (`DDP`, `DataLoader`). Equal if of one call."""

    name: str
    call: ast.Call
    frame: CallFrame

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallResult) and other.call is self.call

    def __hash__(self) -> int:
        return id(self.call)
