"""What the ways through a function give back."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, Unknown

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["return_values"]


def return_values(evaluator: RankEvaluator, body: list[ast.stmt], frame: CallFrame) -> list[tuple[object, bool]]:
    """The values that the ways through a function's body can end with, and whether each is a literal."""
    values: list[tuple[object, bool]] = []
    _collect(evaluator, body, frame, values)
    return values


def _collect(
    evaluator: RankEvaluator, body: list[ast.stmt], frame: CallFrame, values: list[tuple[object, bool]]
) -> bool:
    """Collect what `return` gives; True when the body certainly returns."""
    for each in body:
        if isinstance(each, ast.Return):
            value = None if each.value is None else evaluator.value(each.value, frame)
            values.append((value, each.value is None or isinstance(each.value, ast.Constant)))
            return True
        if isinstance(each, ast.Raise):
            return True
        if isinstance(each, ast.If):
            truth = evaluator.truth(each.test, frame)
            if isinstance(truth, Unknown):
                ends = [_collect(evaluator, part, frame, values) for part in (each.body, each.orelse)]
                if all(ends):
                    return True
            elif _collect(evaluator, each.body if truth else each.orelse, frame, values):
                return True
        elif isinstance(each, (ast.With, ast.AsyncWith, ast.Try)):
            if _collect(evaluator, each.body, frame, values):
                return True
        elif isinstance(each, (ast.For, ast.While, ast.AsyncFor)):
            _collect(evaluator, each.body, frame, values)
    return False
