"""Which of the places that bind a name or an attribute takes effect where it is used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.parameters import merged_values
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, DeferredArgument, Unknown
from ddpdoctor.scripts.syntax.index import Binding, Bound

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["is_inside", "is_loop_counter", "reaching_value"]


def reaching_value(
    evaluator: RankEvaluator, candidates: list[tuple[Binding, Callable[[], object]]], use: ast.expr, frame: CallFrame
) -> object:
    """What the last binding that takes effect gives; where that is open, what all agree on."""
    if len(candidates) == 1:
        return candidates[0][1]()
    values: list[tuple[object, bool]] = []
    around_use = {parent for parent, _ in frame.module.index.enclosing(use)}
    for binding, read in candidates:
        guard = _guard(evaluator, binding.at, around_use, frame)
        if guard is False:
            continue
        if guard in (Unknown.DATA, Unknown.VARIES):
            return guard  # which binding was the last is not the same on all ranks
        literal = isinstance(binding.value, ast.Constant) and binding.how is not Bound.CHANGED
        if guard is True and binding.how is not Bound.PARAMETER:
            values = []
        values.append((read(), literal))
    return merged_values(values)


def _guard(evaluator: RankEvaluator, at: ast.AST, around_use: set[ast.AST], frame: CallFrame) -> bool | Unknown:
    """Whether a statement is reached, by the conditions around it that are not around the use as well."""
    index = frame.module.index
    result: bool | Unknown = True
    for parent, child in index.enclosing(at):
        if parent in index.scopes or parent in around_use:
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            if evaluator.value(parent.test, frame) is Unknown.DATA:
                return Unknown.DATA
            truth = evaluator.truth(parent.test, frame)
            if truth is Unknown.VARIES:
                return truth
            if isinstance(truth, Unknown):
                result = Unknown.SAME
            elif truth is not (child in parent.body):
                return False
        elif isinstance(parent, (ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)):
            result = Unknown.SAME
    return result


def is_inside(node: ast.AST, binding: Binding) -> bool:
    """Whether a name stands in the very statement that binds it: `rank = int(rank)` reads the one before."""
    at = binding.at
    if isinstance(at, ast.arg) or not hasattr(node, "lineno"):
        return False
    end = getattr(at, "end_lineno", None)
    return bool(at is not node and end is not None and at.lineno <= node.lineno <= end and isinstance(at, ast.stmt))  # type: ignore[attr-defined]


def is_loop_counter(node: ast.Name, frame: CallFrame) -> bool:
    """Whether a name is a loop's counter, or a parameter that is given one: `for rank in range(world_size)` goes through
    all ranks on every rank."""
    given = frame.bound.get(node.id)
    if isinstance(given, DeferredArgument):
        return isinstance(given.node, ast.Name) and is_loop_counter(given.node, given.frame)
    bound = frame.module.names.bindings(node.id, frame.module.index.scope(node))
    return bound is not None and any(b.how is Bound.ITEM for b in bound[1])
