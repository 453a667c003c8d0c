"""The length of lists that are filled by `append` and the like: their later content is not their initial one.

A list that gets one item per batch is assumed to have the same length on all ranks; one that gets an item under a condition
is as unknown as the condition.
"""

from __future__ import annotations

import ast

from ddpdoctor.scripts.interpreter.abstract_values import Unknown, worst
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.syntax.index import Scope

__all__ = ["length_after_appends"]

_ADDS_ITEMS = ("append", "extend", "insert", "add", "update")


def length_after_appends(evaluator: Evaluator, node: ast.Name, scope: Scope, frame: CallFrame) -> Unknown | None:
    """How unknown a list's length is after the calls before `node` that add items to it; None if there are none."""
    module = frame.module
    lengths = []
    for name in _ADDS_ITEMS:
        for call in module.method_calls.get(name, ()):
            base = call.func.value if isinstance(call.func, ast.Attribute) else None
            is_list = isinstance(base, ast.Name) and base.id == node.id and module.index.scope(base) is scope
            if is_list and call.lineno <= node.lineno:
                lengths.append(_added_items(evaluator, call, frame))
    return worst(*lengths) if lengths else None


def _added_items(evaluator: Evaluator, call: ast.Call, frame: CallFrame) -> Unknown:
    """How unknown the number of items is that one call adds: SAME if it is the same on all ranks."""
    index = frame.module.index
    tests = [p.test for p, c in index.enclosing(call) if isinstance(p, ast.If) and c is not p.test]
    items = call.args[0] if call.args and getattr(call.func, "attr", "") in ("extend", "update") else None
    for node in ast.walk(items) if items is not None else ():
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Constant)):
            tests.append(node.slice)  # a mask
        elif isinstance(node, ast.comprehension):
            tests += node.ifs
    return worst(*(v for t in tests if isinstance(v := evaluator.value(t, frame), Unknown)))
