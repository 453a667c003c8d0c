"""Conditions inside expressions and of `match`: what decides whether a call is reached, and which case is taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, Unknown, known

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["conditions", "exclusive", "matches_case"]


def conditions(module: Module, call: ast.AST, top: ast.AST) -> list[tuple[ast.expr, bool]]:
    """What must hold inside the expression or statement `top` for a call to be reached: outermost first."""
    if call is top:
        return []
    found: list[tuple[ast.expr, bool]] = []
    for parent, child in module.index.enclosing(call):
        found[:0] = _around(parent, child)
        if parent is top:
            break
    return found


def exclusive(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes stand in the two arms of one branch: where one is reached, the other is not."""
    arms = {parent: child for parent, child in module.index.enclosing(one) if isinstance(parent, ast.If)}
    return any(
        parent in arms and (child in parent.body) is not (arms[parent] in parent.body)
        for parent, child in module.index.enclosing(other)
        if isinstance(parent, ast.If) and child is not parent.test and arms.get(parent) is not parent.test
    )


def _around(parent: ast.AST, child: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(parent, ast.IfExp) and child is not parent.test:
        yield parent.test, child is parent.body
    elif isinstance(parent, ast.BoolOp):
        for value in parent.values:
            if value is child:
                return
            yield value, isinstance(parent.op, ast.And)
    elif not isinstance(child, ast.comprehension):
        yield from ((test, True) for generator in getattr(parent, "generators", ()) for test in generator.ifs)


def matches_case(evaluator: RankEvaluator, case: ast.match_case, value: object, frame: CallFrame) -> bool | Unknown:
    """Whether a value fits a case: its pattern and its guard."""
    fits = _fits(evaluator, case.pattern, value, frame)
    if fits is True and case.guard is not None:
        return evaluator.truth(case.guard, frame)
    return fits


def _fits(evaluator: RankEvaluator, pattern: ast.pattern, value: object, frame: CallFrame) -> bool | Unknown:
    if isinstance(pattern, ast.MatchAs):
        return True if pattern.pattern is None else _fits(evaluator, pattern.pattern, value, frame)
    if isinstance(value, Unknown):
        return value
    if isinstance(pattern, ast.MatchOr):
        several = [_fits(evaluator, each, value, frame) for each in pattern.patterns]
        unknown = next((each for each in several if isinstance(each, Unknown)), None)
        return True if True in several else unknown if unknown is not None else False
    if isinstance(pattern, ast.MatchSingleton):
        return value is pattern.value
    if isinstance(pattern, ast.MatchValue):
        wanted = evaluator.value(pattern.value, frame)
        return bool(value == wanted) if known(wanted) else Unknown.SAME
    return Unknown.SAME
