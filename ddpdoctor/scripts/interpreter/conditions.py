"""Conditions inside expressions and of `match`: whether a call is reached, and which case matches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.scripts.interpreter.abstract_values import Unknown, known
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["conditions", "exclusive", "matches_case"]


def conditions(module: Module, call: ast.AST, top: ast.AST) -> list[tuple[ast.expr, bool]]:
    """The conditions inside the expression or statement `top` under which a call is reached, each with its required truth;
    outermost first."""
    if call is top:
        return []
    tests: list[tuple[ast.expr, bool]] = []
    for parent, child in module.index.enclosing(call):
        tests[:0] = _tests_before(parent, child)
        if parent is top:
            break
    return tests


def exclusive(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are in the two arms of one `if`: if one is reached, the other is not."""
    arms = {parent: child for parent, child in module.index.enclosing(one) if isinstance(parent, ast.If)}
    return any(
        parent in arms and (child in parent.body) is not (arms[parent] in parent.body)
        for parent, child in module.index.enclosing(other)
        if isinstance(parent, ast.If) and child is not parent.test and arms.get(parent) is not parent.test
    )


def _tests_before(parent: ast.AST, child: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """What an expression evaluates first to decide whether a part of it is evaluated."""
    if isinstance(parent, ast.IfExp) and child is not parent.test:
        yield parent.test, child is parent.body
    elif isinstance(parent, ast.BoolOp):
        for value in parent.values:
            if value is child:
                return
            yield value, isinstance(parent.op, ast.And)
    elif not isinstance(child, ast.comprehension):
        yield from ((test, True) for generator in getattr(parent, "generators", ()) for test in generator.ifs)


def matches_case(evaluator: Evaluator, case: ast.match_case, value: object, frame: CallFrame) -> bool | Unknown:
    """Whether a value matches a case: its pattern and its guard."""
    matches = _matches(evaluator, case.pattern, value, frame)
    if matches is True and case.guard is not None:
        return evaluator.truth(case.guard, frame)
    return matches


def _matches(evaluator: Evaluator, pattern: ast.pattern, value: object, frame: CallFrame) -> bool | Unknown:
    if isinstance(pattern, ast.MatchAs):
        return True if pattern.pattern is None else _matches(evaluator, pattern.pattern, value, frame)
    if isinstance(value, Unknown):
        return value
    if isinstance(pattern, ast.MatchOr):
        several = [_matches(evaluator, alternative, value, frame) for alternative in pattern.patterns]
        unknown = next((m for m in several if isinstance(m, Unknown)), None)
        return True if True in several else unknown if unknown is not None else False
    if isinstance(pattern, ast.MatchSingleton):
        return value is pattern.value
    if isinstance(pattern, ast.MatchValue):
        wanted = evaluator.value(pattern.value, frame)
        return bool(value == wanted) if known(wanted) else Unknown.SAME
    return Unknown.SAME
