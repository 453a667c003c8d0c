"""Reaching definitions: which assignments of a name or an attribute determine the value at one place."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, DeferredArgument
from ddpdoctor.scripts.interpreter.parameters import merged_value
from ddpdoctor.scripts.syntax.index import Binding, Bound

__all__ = ["is_inside", "is_loop_counter", "reaching_value"]


def reaching_value(
    evaluator: Evaluator, candidates: list[tuple[Binding, Callable[[], object]]], use: ast.expr, frame: CallFrame
) -> object:
    """The value of the last assignment that is certainly executed, merged with those after it that may be executed."""
    if len(candidates) == 1:
        return candidates[0][1]()
    values: list[tuple[object, bool]] = []
    around_use = {parent for parent, _ in frame.module.index.enclosing(use)}
    for binding, evaluate in candidates:
        executed = _is_executed(evaluator, binding.at, around_use, frame)
        if executed is False:
            continue
        if executed in (Unknown.DATA, Unknown.VARIES):
            return executed  # which assignment was the last is not the same on all ranks
        is_default = assumptions.is_default(binding.value) and binding.how is not Bound.CHANGED
        if executed is True and binding.how is not Bound.PARAMETER:
            values = []
        values.append((evaluate(), is_default))
    return merged_value(values)


def _is_executed(evaluator: Evaluator, node: ast.AST, around_use: set[ast.AST], frame: CallFrame) -> bool | Unknown:
    """Whether a statement is executed, according to the conditions around it that are not also around the use."""
    index = frame.module.index
    result: bool | Unknown = True
    for parent, child in index.enclosing(node):
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
    """Whether a name is part of the statement that assigns it: in `rank = int(rank)` it has the value from before."""
    statement = binding.at
    if not isinstance(statement, ast.stmt) or not isinstance(node, (ast.expr, ast.stmt)) or statement is node:
        return False
    return statement.end_lineno is not None and statement.lineno <= node.lineno <= statement.end_lineno


def is_loop_counter(node: ast.Name, frame: CallFrame) -> bool:
    """Whether a name is the counter of a loop, or a parameter that gets one: `for rank in range(world_size)` takes all values
    on every rank."""
    given = frame.bound.get(node.id)
    if isinstance(given, DeferredArgument):
        return isinstance(given.node, ast.Name) and is_loop_counter(given.node, given.frame)
    bound = frame.module.names.bindings(node.id, frame.module.index.scope(node))
    return bound is not None and any(b.how is Bound.ITEM for b in bound[1])
