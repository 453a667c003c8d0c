"""The values that a function can return."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame

__all__ = ["return_values"]


def return_values(evaluator: Evaluator, body: list[ast.stmt], frame: CallFrame) -> list[tuple[object, bool]]:
    """The values that a function's body can return, each with whether it is a literal."""
    values: list[tuple[object, bool]] = []
    _collect(evaluator, body, frame, values)
    return values


def _collect(evaluator: Evaluator, body: list[ast.stmt], frame: CallFrame, values: list[tuple[object, bool]]) -> bool:
    """Collect the values of `return` statements; True if the body certainly returns."""
    for statement in body:
        if isinstance(statement, ast.Return):
            value = None if statement.value is None else evaluator.value(statement.value, frame)
            values.append((value, statement.value is None or assumptions.is_default(statement.value)))
            return True
        if isinstance(statement, ast.Raise):
            return True
        if isinstance(statement, ast.If):
            truth = evaluator.truth(statement.test, frame)
            if isinstance(truth, Unknown):
                returns = [_collect(evaluator, arm, frame, values) for arm in (statement.body, statement.orelse)]
                if all(returns):
                    return True
            elif _collect(evaluator, statement.body if truth else statement.orelse, frame, values):
                return True
        elif isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
            if _collect(evaluator, statement.body, frame, values):
                return True
        elif isinstance(statement, (ast.For, ast.While, ast.AsyncFor)):
            _collect(evaluator, statement.body, frame, values)
    return False
