"""Lists that begin empty and grow: what they hold where they are read is not what they began with."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, Unknown, worst
from ddpdoctor.scripts.syntax.index import Scope

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["length_after_appends"]

_GROWS = ("append", "extend", "insert", "add", "update")


def length_after_appends(evaluator: RankEvaluator, node: ast.Name, scope: Scope, frame: CallFrame) -> Unknown | None:
    """What is known of a list's length after the calls before a use that put items into it; None: it stays as it is.

    An item for each batch comes to equally many on all ranks, one for some batches does not.
    """
    module = frame.module
    found = []
    for name in _GROWS:
        for call in module.method_calls.get(name, ()):
            base = call.func.value if isinstance(call.func, ast.Attribute) else None
            is_it = isinstance(base, ast.Name) and base.id == node.id and module.index.scope(base) is scope
            if is_it and call.lineno <= node.lineno:
                found.append(_length(evaluator, call, frame))
    return worst(*found) if found else None


def _length(evaluator: RankEvaluator, call: ast.Call, frame: CallFrame) -> Unknown:
    """Whether one such call adds as many items on all ranks."""
    index = frame.module.index
    tests = [p.test for p, c in index.enclosing(call) if isinstance(p, ast.If) and c is not p.test]
    added = call.args[0] if call.args and getattr(call.func, "attr", "") in ("extend", "update") else None
    for each in ast.walk(added) if added is not None else ():
        if isinstance(each, ast.Subscript) and not isinstance(each.slice, (ast.Slice, ast.Constant)):
            tests.append(each.slice)  # a mask
        elif isinstance(each, ast.comprehension):
            tests += each.ifs
    return worst(*(v for t in tests if isinstance(v := evaluator.value(t, frame), Unknown)))
