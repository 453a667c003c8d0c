"""The values of literals, operators, f-strings, subscripts and comprehensions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown, known, worst
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, CallResult
from ddpdoctor.scripts.syntax.vocabulary import VARIABLES

__all__ = ["MAX_ITEMS", "PLAIN", "environment_variable", "has_unknown", "operator_value", "result_or_unknown"]


MAX_ITEMS = 64
"""Longest list whose items are evaluated one by one; longer lists are unknown."""
MAX_PRODUCT = 4096
"""Longest repeated list or string, such as `[0] * 100`, that is built."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b if a is None or b is None else a == b,
    ast.IsNot: lambda a, b: a is not b if a is None or b is None else a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
PLAIN = (int, float, str, bool, bytes, type(None), list, tuple, set)


def operator_value(evaluator: Evaluator, node: ast.expr, frame: CallFrame) -> object:
    """The value of an expression that is not a name, an attribute or a call."""
    evaluate = _EVALUATE.get(type(node))
    return evaluate(evaluator, node, frame) if evaluate is not None else Unknown.SAME


def _sequence(evaluator: Evaluator, node: ast.List | ast.Tuple | ast.Set, frame: CallFrame) -> object:
    if len(node.elts) > MAX_ITEMS or any(isinstance(e, ast.Starred) for e in node.elts):
        return Unknown.SAME
    items = [evaluator.value(e, frame) for e in node.elts]
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(evaluator: Evaluator, node: ast.Dict, frame: CallFrame) -> object:
    return {} if not node.keys else Unknown.SAME


def _binary(evaluator: Evaluator, node: ast.BinOp, frame: CallFrame) -> object:
    left, right = evaluator.value(node.left, frame), evaluator.value(node.right, frame)
    if not known(left) or not known(right):
        return worst(left, right)
    if isinstance(node.op, ast.Mod) and assumptions.is_gpus_per_node(node.right) and _is_rank(evaluator, left):
        return evaluator.context.local_rank
    operation = _BINARY.get(type(node.op))
    is_plain = isinstance(left, PLAIN) and isinstance(right, PLAIN)
    if operation is None or not is_plain or _is_large(left, right, node.op):
        return Unknown.SAME
    return result_or_unknown(operation, left, right)


def _is_rank(evaluator: Evaluator, value: object) -> bool:
    """Whether a value is the global rank, and not also the local rank."""
    return evaluator.job.local_world_size < evaluator.job.world_size and value == evaluator.context.rank


def _is_large(left: object, right: object, op: ast.operator) -> bool:
    if not isinstance(op, ast.Mult):
        return False
    sequences = [x for x in (left, right) if isinstance(x, (str, list, tuple, bytes))]
    counts = [x for x in (left, right) if isinstance(x, int)]
    is_long = bool(sequences and counts and len(sequences[0]) * counts[0] > MAX_PRODUCT)
    return is_long or any(abs(c) > 1 << 62 for c in counts)


def result_or_unknown(operation: Callable[..., Any], *operands: Any) -> object:
    """The result of an operation, Unknown if it raises."""
    try:
        return operation(*operands)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, MemoryError):
        return Unknown.SAME


def _unary(evaluator: Evaluator, node: ast.UnaryOp, frame: CallFrame) -> object:
    if isinstance(node.op, ast.Not):
        return evaluator.truth(node, frame)
    value = evaluator.value(node.operand, frame)
    if isinstance(value, (int, float)):
        return -value if isinstance(node.op, ast.USub) else value
    return worst(value)


def _and_or(evaluator: Evaluator, node: ast.BoolOp, frame: CallFrame) -> object:
    values: list[object] = []
    for operand in node.values:
        value = evaluator.value(operand, frame)
        values.append(value)
        if known(value) and not isinstance(value, CallResult) and bool(value) is isinstance(node.op, ast.Or):
            break
    return values[-1] if all(known(v) for v in values) else worst(*values)


def _compare(evaluator: Evaluator, node: ast.Compare, frame: CallFrame) -> object:
    operands = [node.left, *node.comparators]
    values = [evaluator.value(operand, frame) for operand in operands]
    if isinstance(node.ops[0], (ast.In, ast.NotIn)) and _is_environ(node.comparators[0], frame):
        is_set = isinstance(values[0], str) and assumptions.is_set_by_launcher(values[0])
        return isinstance(node.ops[0], ast.In) if is_set else Unknown.SAME
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and isinstance(values[0], CallResult) and values[1] is None:
        return isinstance(node.ops[0], ast.IsNot)
    if Unknown.DATA in values and _is_same_everywhere(node, operands, values, frame):
        return Unknown.SAME
    if not all(known(v) and isinstance(v, (*PLAIN, TorchDevice)) for v in values) or any(
        has_unknown(v) for v in values
    ):
        return worst(*values, *(Unknown.SAME if known(v) else v for v in values))
    for left, op, right in zip(values, node.ops, values[1:], strict=False):
        result = result_or_unknown(_COMPARE[type(op)], left, right)
        if not known(result):
            return result
        if not result:
            return False
    return True


def _is_same_everywhere(node: ast.Compare, operands: list[ast.expr], values: list[object], frame: CallFrame) -> bool:
    """Whether a comparison with the data of the rank has the same result on all ranks."""
    op = node.ops[0]
    is_none_test = isinstance(op, (ast.Is, ast.IsNot)) and values == [Unknown.DATA, None]
    if is_none_test and assumptions.is_configured_as_none(node.left, frame.module):
        return True
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(values[0], str) and assumptions.has_same_fields(values[1]):
        return True
    return assumptions.are_sizes(operands)


def has_unknown(value: object) -> bool:
    """Whether a sequence has an item that is unknown."""
    return isinstance(value, (list, tuple, set)) and any(isinstance(v, Unknown) for v in value)


def _conditional(evaluator: Evaluator, node: ast.IfExp, frame: CallFrame) -> object:
    truth = evaluator.truth(node.test, frame)
    if not isinstance(truth, Unknown):
        return evaluator.value(node.body if truth else node.orelse, frame)
    values = [evaluator.value(node.body, frame), evaluator.value(node.orelse, frame)]
    is_default = [assumptions.is_default(e) for e in (node.body, node.orelse)]
    if values[0] == values[1] and type(values[0]) is type(values[1]):
        return values[0]
    if is_default[0] != is_default[1] and truth is Unknown.SAME:
        return values[is_default.index(False)]
    return worst(truth, *values)


def _f_string(evaluator: Evaluator, node: ast.JoinedStr, frame: CallFrame) -> object:
    parts: list[object] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            value = evaluator.value(part.value, frame)
            is_plain = isinstance(value, (str, int)) and part.format_spec is None and part.conversion == -1
            parts.append(str(value) if is_plain else worst(value))
    return "".join(str(p) for p in parts) if all(known(p) for p in parts) else worst(*parts)


def _subscript(evaluator: Evaluator, node: ast.Subscript, frame: CallFrame) -> object:
    if _is_environ(node.value, frame):
        return environment_variable(evaluator, evaluator.value(node.slice, frame), frame)
    base = evaluator.value(node.value, frame)
    if isinstance(node.slice, ast.Slice):
        return _slice(evaluator, base, node.slice, frame)
    key = evaluator.value(node.slice, frame)
    if isinstance(base, (str, list, tuple)) and isinstance(key, int):
        return result_or_unknown(operator.getitem, base, key)
    is_own_item = isinstance(key, int) and _names_rank(node.slice)
    return Unknown.VARIES if is_own_item else worst(base, key)


def _slice(evaluator: Evaluator, base: object, part: ast.Slice, frame: CallFrame) -> object:
    bounds = [None if e is None else evaluator.value(e, frame) for e in (part.lower, part.upper, part.step)]
    if known(base) and all(known(b) for b in bounds) and isinstance(base, (str, list, tuple)):
        return result_or_unknown(operator.getitem, base, slice(*bounds))
    return worst(base, *bounds)


def _names_rank(node: ast.expr) -> bool:
    """Whether a name in an expression may be the rank's."""
    return any(isinstance(n, ast.Name) and n.id in assumptions.RANK_NAMES for n in ast.walk(node))


def _comprehension(evaluator: Evaluator, node: ast.ListComp | ast.GeneratorExp, frame: CallFrame) -> object:
    generator = node.generators[0]
    items = evaluator.value(generator.iter, frame)
    is_plain = len(node.generators) == 1 and isinstance(generator.target, ast.Name)
    if not is_plain or not isinstance(items, (list, tuple)) or len(items) > MAX_ITEMS:
        return worst(items)
    results = []
    name = generator.target.id if isinstance(generator.target, ast.Name) else ""
    for item in items:
        inner_frame = CallFrame(frame.module, frame.function, {**frame.bound, name: item})
        tests = [evaluator.value(test, inner_frame) for test in generator.ifs]
        unknown = [t for t in tests if isinstance(t, Unknown)]
        if unknown:
            return worst(*unknown)
        if all(tests):
            results.append(evaluator.value(node.elt, inner_frame))
        evaluator.copied_frame(inner_frame, frame)
    return results


_EVALUATE: dict[type, Callable[[Evaluator, Any, CallFrame], object]] = {
    ast.Constant: lambda evaluator, node, frame: node.value,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _and_or,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.JoinedStr: _f_string,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: lambda evaluator, node, frame: evaluator.value(node.value, frame),
    ast.Await: lambda evaluator, node, frame: evaluator.value(node.value, frame),
}


# The environment.


def _is_environ(node: ast.expr, frame: CallFrame) -> bool:
    return frame.module.names.of(node) == "os.environ"


def environment_variable(evaluator: Evaluator, name: object, frame: CallFrame) -> object:
    """The string that a launcher sets an environment variable to."""
    rank_property = VARIABLES.get(name) if isinstance(name, str) else None
    if rank_property is None:
        return worst(name)
    return str(evaluator.rank_property(rank_property))
