"""What operators, builtins, os.environ, torch and attributes give: the leaves of `values.Reader`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, CallResult, Device, Unknown, known, worst
from ddpdoctor.scripts.syntax.vocabulary import PARAMETERS, VARIABLES

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["PLAIN", "environment_variable", "has_unknown", "is_environ", "other", "result_or_unknown"]


MAX_ITEMS = 64

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


def other(evaluator: RankEvaluator, node: ast.expr, frame: CallFrame) -> object:
    """Values of expressions that are no name, attribute or call."""
    read = _READ.get(type(node))
    return read(evaluator, node, frame) if read is not None else Unknown.SAME


def _constant(evaluator: RankEvaluator, node: ast.Constant, frame: CallFrame) -> object:
    return node.value


def _sequence(evaluator: RankEvaluator, node: ast.List | ast.Tuple | ast.Set, frame: CallFrame) -> object:
    if len(node.elts) > MAX_ITEMS or any(isinstance(e, ast.Starred) for e in node.elts):
        return Unknown.SAME
    items = [evaluator.value(e, frame) for e in node.elts]
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(evaluator: RankEvaluator, node: ast.Dict, frame: CallFrame) -> object:
    return {} if not node.keys else Unknown.SAME


def _binary(evaluator: RankEvaluator, node: ast.BinOp, frame: CallFrame) -> object:
    left, right = evaluator.value(node.left, frame), evaluator.value(node.right, frame)
    if not known(left) or not known(right):
        return worst(left, right)
    if isinstance(node.op, ast.Mod) and _is_gpus_of_a_node(evaluator, node.right) and left == evaluator.context.rank:
        return evaluator.context.local_rank
    work = _BINARY.get(type(node.op))
    if work is None or not isinstance(left, PLAIN) or not isinstance(right, PLAIN) or _is_large(left, right, node.op):
        return Unknown.SAME
    return result_or_unknown(work, left, right)


def _is_gpus_of_a_node(evaluator: RankEvaluator, node: ast.expr) -> bool:
    """`rank % 8`: the author's nodes have eight GPUs, those of the imagined job two."""
    is_count = isinstance(node, ast.Constant) and node.value in (4, 8, 16)
    return is_count and evaluator.job.local_world_size < evaluator.job.world_size


def _is_large(left: object, right: object, op: ast.operator) -> bool:
    if not isinstance(op, ast.Mult):
        return False
    sized = [x for x in (left, right) if isinstance(x, (str, list, tuple, bytes))]
    counts = [x for x in (left, right) if isinstance(x, int)]
    return bool(sized and counts and len(sized[0]) * counts[0] > 4096) or any(abs(c) > 1 << 62 for c in counts)


def result_or_unknown(work: Callable[..., Any], *operands: Any) -> object:
    try:
        result = work(*operands)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, MemoryError):
        return Unknown.SAME  # the rehearsed line would raise: nothing is known of its value
    return result


def _unary(evaluator: RankEvaluator, node: ast.UnaryOp, frame: CallFrame) -> object:
    if isinstance(node.op, ast.Not):
        return evaluator.truth(node, frame)
    value = evaluator.value(node.operand, frame)
    if isinstance(value, (int, float)):
        return -value if isinstance(node.op, ast.USub) else value
    return worst(value)


def _truth(evaluator: RankEvaluator, node: ast.BoolOp, frame: CallFrame) -> object:
    values: list[object] = []
    for each in node.values:
        value = evaluator.value(each, frame)
        values.append(value)
        if known(value) and not isinstance(value, CallResult) and bool(value) is isinstance(node.op, ast.Or):
            return value if all(known(v) for v in values) else worst(*values)
    return values[-1] if all(known(v) for v in values) else worst(*values)


def _compare(evaluator: RankEvaluator, node: ast.Compare, frame: CallFrame) -> object:
    values = [evaluator.value(each, frame) for each in (node.left, *node.comparators)]
    if isinstance(node.ops[0], (ast.In, ast.NotIn)) and is_environ(node.comparators[0], frame):
        known_one = (
            values[0] in VARIABLES and not str(values[0]).startswith(("SLURM", "OMPI", "PMI"))
            if known(values[0])
            else None
        )
        return Unknown.SAME if not known_one else isinstance(node.ops[0], ast.In)
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and isinstance(values[0], CallResult) and values[1] is None:
        return isinstance(node.ops[0], ast.IsNot)
    if (
        isinstance(node.ops[0], (ast.Is, ast.IsNot))
        and values == [Unknown.DATA, None]
        and _may_be_none(node.left, frame)
    ):
        return Unknown.SAME
    if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(values[0], str) and values[1] is Unknown.DATA:
        return Unknown.SAME  # whether a batch or a result has a field: the same for all of its kind
    if Unknown.DATA in values and all(_is_size(each) for each in (node.left, *node.comparators)):
        return Unknown.SAME  # a batch held against itself: whether it is whole, which it is everywhere or nowhere
    if not all(known(v) and isinstance(v, (*PLAIN, Device)) for v in values) or any(has_unknown(v) for v in values):
        return worst(*values, *(Unknown.SAME if known(v) else v for v in values))
    for left, op, right in zip(values, node.ops, values[1:], strict=False):
        result = result_or_unknown(_COMPARE[type(op)], left, right)
        if not known(result):
            return result
        if not result:
            return False
    return True


def _is_size(node: ast.expr) -> bool:
    """`len(batch)`, `batch.shape[0]`, `batch.size(0)`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    func = node.func if isinstance(node, ast.Call) else None
    return (isinstance(func, ast.Name) and func.id == "len") or (
        isinstance(func, ast.Attribute) and func.attr == "size"
    )


def _may_be_none(node: ast.expr, frame: CallFrame) -> bool:
    """A name that is also given None, or a named field: the configuration decides whether there is a value at all."""
    if _is_field(node):
        return True
    bound = frame.module.names.bindings(node.id, frame.module.index.scope(node)) if isinstance(node, ast.Name) else None
    values = [b.value for b in bound[1] if b.value is not None] if bound is not None else []
    ends = [e for v in values for e in ((v.body, v.orelse) if isinstance(v, ast.IfExp) else (v,))]
    return any((isinstance(e, ast.Constant) and e.value is None) or _is_field(e) for e in ends)


def _is_field(node: ast.expr) -> bool:
    """`result["loss"]`, `result.loss`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    return isinstance(node, ast.Attribute)


def has_unknown(value: object) -> bool:
    return isinstance(value, (list, tuple, set)) and any(isinstance(v, Unknown) for v in value)


def _either(evaluator: RankEvaluator, node: ast.IfExp, frame: CallFrame) -> object:
    truth = evaluator.truth(node.test, frame)
    if not isinstance(truth, Unknown):
        return evaluator.value(node.body if truth else node.orelse, frame)
    values = [evaluator.value(node.body, frame), evaluator.value(node.orelse, frame)]
    literal = [isinstance(e, ast.Constant) for e in (node.body, node.orelse)]
    if values[0] == values[1] and type(values[0]) is type(values[1]):
        return values[0]
    if literal[0] != literal[1] and truth is Unknown.SAME:
        return values[literal.index(False)]
    return worst(truth, *values)


def _text(evaluator: RankEvaluator, node: ast.JoinedStr, frame: CallFrame) -> object:
    parts: list[object] = []
    for each in node.values:
        if isinstance(each, ast.Constant):
            parts.append(str(each.value))
        elif isinstance(each, ast.FormattedValue):
            value = evaluator.value(each.value, frame)
            plain = isinstance(value, (str, int)) and each.format_spec is None and each.conversion == -1
            parts.append(str(value) if plain else worst(value))
    return "".join(str(p) for p in parts) if all(known(p) for p in parts) else worst(*parts)


def _subscript(evaluator: RankEvaluator, node: ast.Subscript, frame: CallFrame) -> object:
    if is_environ(node.value, frame):
        return environment_variable(evaluator, evaluator.value(node.slice, frame), frame)
    base = evaluator.value(node.value, frame)
    if isinstance(node.slice, ast.Slice):
        return _slice(evaluator, base, node.slice, frame)
    at = evaluator.value(node.slice, frame)
    if isinstance(base, (str, list, tuple)) and isinstance(at, int):
        return result_or_unknown(operator.getitem, base, at)
    varies = isinstance(at, int) and _differs(evaluator, node.slice, frame)
    return Unknown.VARIES if varies else worst(base, at)


def _slice(evaluator: RankEvaluator, base: object, part: ast.Slice, frame: CallFrame) -> object:
    ends = [None if e is None else evaluator.value(e, frame) for e in (part.lower, part.upper, part.step)]
    if known(base) and all(known(e) for e in ends) and isinstance(base, (str, list, tuple)):
        return result_or_unknown(operator.getitem, base, slice(*ends))
    return worst(base, *ends)


def _differs(evaluator: RankEvaluator, node: ast.expr, frame: CallFrame) -> bool:
    """Whether an expression has a name in it that could tell the rank."""
    return any(isinstance(n, ast.Name) and n.id in PARAMETERS for n in ast.walk(node))


def _comprehension(evaluator: RankEvaluator, node: ast.ListComp | ast.GeneratorExp, frame: CallFrame) -> object:
    generator = node.generators[0]
    items = evaluator.value(generator.iter, frame)
    plain = len(node.generators) == 1 and isinstance(generator.target, ast.Name)
    if not plain or not isinstance(items, (list, tuple)) or len(items) > MAX_ITEMS:
        return worst(items)
    found = []
    name = generator.target.id if isinstance(generator.target, ast.Name) else ""
    for item in items:
        inner_frame = CallFrame(frame.module, frame.function, {**frame.bound, name: item})
        kept = [evaluator.value(test, inner_frame) for test in generator.ifs]
        unknown = [k for k in kept if isinstance(k, Unknown)]
        if unknown:
            return worst(*unknown)
        if all(kept):
            found.append(evaluator.value(node.elt, inner_frame))
        evaluator.leave(inner_frame, frame)
    return found


_READ: dict[type, Callable[[RankEvaluator, Any, CallFrame], object]] = {
    ast.Constant: _constant,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _truth,
    ast.Compare: _compare,
    ast.IfExp: _either,
    ast.JoinedStr: _text,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: lambda evaluator, node, frame: evaluator.value(node.value, frame),
    ast.Await: lambda evaluator, node, frame: evaluator.value(node.value, frame),
}


# The environment.


def is_environ(node: ast.expr, frame: CallFrame) -> bool:
    return frame.module.names.of(node) == "os.environ"


def environment_variable(evaluator: RankEvaluator, name: object, frame: CallFrame) -> object:
    """The text of an environment variable under a launcher."""
    word = VARIABLES.get(name) if isinstance(name, str) else None
    if word is None:
        return worst(name)
    return str(evaluator.rank_property(word))
