"""Tensors as far as the source shows them: their shape and dtype on one rank.

A collective needs the same shape and dtype on all ranks. `tensor_of` follows a tensor through assignments, function
calls, methods that keep or change the dtype, and arithmetic. What the source does not determine is None: nothing is concluded
from it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import replace

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, DeferredArgument
from ddpdoctor.scripts.interpreter.parameters import bound_arguments
from ddpdoctor.scripts.interpreter.reaching_definitions import is_inside, reaching_value
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.vocabulary import words

__all__ = ["Tensor", "tensor_of"]

MAX_DEPTH = 16
"""Names, calls and operands that one tensor is followed through."""
MAX_ELEMENTS = 1 << 40
"""Most elements of a shape that is described."""

_SIZED = frozenset(words("torch.zeros torch.ones torch.empty torch.rand torch.randn"))
"""Functions whose positional arguments, or first argument, are the shape."""
_LIKE = frozenset(
    words("torch.zeros_like torch.ones_like torch.empty_like torch.rand_like torch.randn_like torch.full_like")
)
_KEEPS = frozenset(
    words(
        "cuda cpu clone detach contiguous requires_grad_ zero_ fill_ add_ sub_ mul_ div_ normal_ uniform_ copy_ random_ "
        "pin_memory clamp_ data share_memory_"
    )
)
"""Methods, and attributes, whose result has the same shape and dtype."""
_CASTS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "bool": "bool",
}
_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}
_DTYPES = frozenset(
    words(
        "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 bool complex64 complex128 float8_e4m3fn float8_e5m2"
    )
)
_ARITHMETIC: dict[type, Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_INTEGERS = frozenset(words("int8 int16 int32 int64 uint8 bool"))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on one rank. `shape` in elements per dimension and `dtype` without `torch.`; None where it is unknown."""

    shape: tuple[int, ...] | None
    dtype: str | None

    @property
    def elements(self) -> int | None:
        """The number of elements, None if the shape is unknown."""
        if self.shape is None:
            return None
        count = 1
        for size in self.shape:
            count *= size
        return count


def tensor_of(evaluator: Evaluator, node: ast.expr, frame: CallFrame, depth: int = 0) -> Tensor | None:
    """The tensor that an expression is on this rank; None if it is not known to be one."""
    if depth > MAX_DEPTH:
        return None
    describe = _DESCRIBE.get(type(node))
    return describe(evaluator, node, frame, depth + 1) if describe is not None else None


def _of_name(evaluator: Evaluator, node: ast.Name, frame: CallFrame, depth: int) -> Tensor | None:
    if node.id in frame.bound:
        given = frame.bound[node.id]
        return tensor_of(evaluator, given.node, given.frame, depth) if isinstance(given, DeferredArgument) else None
    module = frame.module
    scope = module.index.scope(node)
    bound = module.names.bindings(node.id, scope)
    if bound is None:
        return None
    owner, bindings = bound
    assigned = [b for b in bindings if b.how is not Bound.CHANGED]  # `x += 1` keeps shape and dtype
    if owner is scope:
        assigned = [b for b in assigned if b.line <= node.lineno and not is_inside(node, b)]
    if not assigned or any(b.how is not Bound.VALUE for b in assigned):
        return None
    own = frame if frame.function is owner.function else evaluator.frame_of(assigned[0].at, module)
    value = reaching_value(evaluator, [(b, _deferred(evaluator, b, own, depth)) for b in assigned], node, frame)
    return value if isinstance(value, Tensor) else None


def _deferred(evaluator: Evaluator, binding: Binding, frame: CallFrame, depth: int) -> Callable[[], object]:
    def describe() -> object:
        tensor = tensor_of(evaluator, binding.value, frame, depth) if binding.value is not None else None
        return Unknown.SAME if tensor is None else tensor

    return describe


def _of_call(evaluator: Evaluator, node: ast.Call, frame: CallFrame, depth: int) -> Tensor | None:
    name = frame.module.names.of(node.func)
    if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
        return None
    if name is not None:
        return _created(evaluator, name, node, frame, depth)
    target = frame.module.target(node)
    if target is not None and target.function.name != "__init__":
        inner = CallFrame(target.module, target.function, bound_arguments(node, target.function, frame))
        return _returned(evaluator, target.function.body, inner, depth)
    return _of_method(evaluator, node, frame, depth) if isinstance(node.func, ast.Attribute) else None


def _created(evaluator: Evaluator, name: str, node: ast.Call, frame: CallFrame, depth: int) -> Tensor | None:
    """The result of a function of torch that creates a tensor."""
    first = node.args[0] if node.args else None
    if name in _SIZED:
        return Tensor(_shape(evaluator, node.args, frame), _dtype(node, frame, _default_dtype(frame)))
    if name in _LIKE and first is not None:
        like = tensor_of(evaluator, first, frame, depth)
        return None if like is None else replace(like, dtype=_dtype(node, frame, like.dtype))
    if name == "torch.full" and len(node.args) >= 2:
        filled = _dtype_of(evaluator.value(node.args[1], frame), frame)
        return Tensor(_shape(evaluator, node.args[:1], frame), _dtype(node, frame, filled))
    if name == "torch.arange" and len(node.args) == 1:
        end = evaluator.value(node.args[0], frame)
        return Tensor((end,), _dtype(node, frame, "int64")) if type(end) is int and end >= 0 else None
    if name in ("torch.tensor", "torch.as_tensor") and first is not None:
        shape, dtype = _of_data(evaluator, first, frame)
        return Tensor(shape, _dtype(node, frame, dtype))
    return None


def _of_data(evaluator: Evaluator, node: ast.expr, frame: CallFrame) -> tuple[tuple[int, ...] | None, str | None]:
    """Shape and dtype of `torch.tensor(data)`."""
    if isinstance(node, (ast.List, ast.Tuple)):
        if any(isinstance(e, ast.Starred) for e in node.elts):
            return None, None
        if not node.elts:
            return (0,), _default_dtype(frame)
        parts = [_of_data(evaluator, e, frame) for e in node.elts]
        shape = parts[0][0]
        is_even = shape is not None and all(p[0] == shape for p in parts)
        return (len(parts), *shape) if is_even and shape is not None else None, _widest([p[1] for p in parts])
    value = evaluator.value(node, frame)
    is_number = isinstance(value, (bool, int, float))
    return () if is_number or _is_number(node, frame) else None, _dtype_of(value, frame)


def _is_number(node: ast.expr, frame: CallFrame) -> bool:
    """Whether an expression is certainly one Python number: `len(x)`, `loss.item()`."""
    if not isinstance(node, ast.Call):
        return False
    is_item = isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args
    return is_item or frame.module.names.of(node.func) in ("len", "float", "int", "time.time")


def _widest(dtypes: list[str | None]) -> str | None:
    """The dtype of a tensor of numbers of these dtypes."""
    if None in dtypes:
        return None
    order = ("bool", "int64", "float32", "float64")
    return max(dtypes, key=lambda d: order.index(d) if d in order else -1) if set(dtypes) <= set(order) else None


def _dtype_of(value: object, frame: CallFrame) -> str | None:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    return _default_dtype(frame) if isinstance(value, float) else None


def _default_dtype(frame: CallFrame) -> str | None:
    """float32, unless the file changes the default."""
    return None if frame.module.calls("torch.set_default_dtype", "torch.set_default_tensor_type") else "float32"


def _dtype(node: ast.Call, frame: CallFrame, otherwise: str | None) -> str | None:
    """The dtype that a call names, or what it has otherwise."""
    given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
    return otherwise if given is None else _named_dtype(given, frame)


def _named_dtype(node: ast.expr, frame: CallFrame) -> str | None:
    name = (frame.module.names.of(node) or "").removeprefix("torch.")
    name = _ALIASES.get(name, name)
    return name if name in _DTYPES else None


def _shape(evaluator: Evaluator, sizes: list[ast.expr], frame: CallFrame) -> tuple[int, ...] | None:
    """The shape given as several numbers or as one list of them."""
    if not sizes:
        return None
    values: list[object] = [_size(evaluator, s, frame) for s in sizes]
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = list(values[0])
    is_known = all(type(v) is int and 0 <= v < MAX_ELEMENTS for v in values)
    return tuple(v for v in values if isinstance(v, int)) if is_known else None


def _size(evaluator: Evaluator, node: ast.expr, frame: CallFrame) -> object:
    """A number, also one that is computed from the size of another tensor."""
    value = evaluator.value(node, frame)
    if not isinstance(value, Unknown):
        return value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _size(evaluator, node.left, frame), _size(evaluator, node.right, frame)
        is_known = type(left) is int and type(right) is int and (right != 0 or not isinstance(node.op, ast.FloorDiv))
        return _ARITHMETIC[type(node.op)](left, right) if is_known else Unknown.SAME
    if isinstance(node, ast.Call):
        is_length = frame.module.names.of(node.func) == "len" and len(node.args) == 1
        measured = node.args[0] if is_length else getattr(node.func, "value", None)
        tensor = tensor_of(evaluator, measured, frame) if isinstance(measured, ast.expr) else None
        if tensor is not None and is_length:
            return tensor.shape[0] if tensor.shape else Unknown.SAME
        if tensor is not None and getattr(node.func, "attr", "") in ("numel", "nelement"):
            return Unknown.SAME if tensor.elements is None else tensor.elements
    return value


def _of_method(evaluator: Evaluator, node: ast.Call, frame: CallFrame, depth: int) -> Tensor | None:
    """The result of a method of a tensor."""
    assert isinstance(node.func, ast.Attribute)
    base = tensor_of(evaluator, node.func.value, frame, depth)
    method = node.func.attr
    if base is None:
        return None
    if method in _KEEPS:
        return base
    if method in _CASTS:
        return replace(base, dtype=_CASTS[method])
    if method in ("to", "type"):
        return replace(base, dtype=_cast_to(node, frame, base.dtype))
    if method == "flatten" and not node.args and not node.keywords:
        return replace(base, shape=None if base.elements is None else (base.elements,))
    return None


def _cast_to(node: ast.Call, frame: CallFrame, dtype: str | None) -> str | None:
    """The dtype after `x.to(…)`: the one that is named, the same if only a device is named, else unknown."""
    given = [*node.args, *(k.value for k in node.keywords if k.arg in ("dtype", "other"))]
    named = [name for g in given if (name := _named_dtype(g, frame)) is not None]
    if named:
        return named[0]
    devices = [g for g in given if _is_device(g, frame)]
    return dtype if len(devices) == len(given) else None


def _is_device(node: ast.expr, frame: CallFrame) -> bool:
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        return True
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    if isinstance(node, ast.Call):
        return frame.module.names.of(node.func) == "torch.device"
    return "dev" in name or "rank" in name or "gpu" in name


def _returned(evaluator: Evaluator, body: list[ast.stmt], frame: CallFrame, depth: int) -> Tensor | None:
    """The only tensor that a function can return on this rank."""
    found: list[Tensor | None] = []
    _collect(evaluator, body, frame, depth, found)
    return found[0] if found and all(f == found[0] for f in found) else None


def _collect(
    evaluator: Evaluator, body: list[ast.stmt], frame: CallFrame, depth: int, found: list[Tensor | None]
) -> bool:
    """Collect the returned tensors of a block; True if it certainly returns."""
    for statement in body:
        if isinstance(statement, ast.Return):
            found.append(tensor_of(evaluator, statement.value, frame, depth) if statement.value is not None else None)
            return True
        if isinstance(statement, ast.Raise):
            return True
        if isinstance(statement, ast.If):
            truth = evaluator.truth(statement.test, frame)
            arms = [statement.body, statement.orelse]
            taken = arms if isinstance(truth, Unknown) else [arms[0] if truth else arms[1]]
            returns_of_arms = [_collect(evaluator, arm, frame, depth, found) for arm in taken]
            if all(returns_of_arms):
                return True
        elif isinstance(statement, (ast.With, ast.AsyncWith, ast.Try, ast.For, ast.While)):
            returns = _collect(evaluator, statement.body, frame, depth, found)
            if returns and isinstance(statement, (ast.With, ast.AsyncWith)):
                return True
    return False


def _of_operation(evaluator: Evaluator, node: ast.BinOp, frame: CallFrame, depth: int) -> Tensor | None:
    """A tensor and a Python number, or two tensors of one shape."""
    left, right = (tensor_of(evaluator, side, frame, depth) for side in (node.left, node.right))
    if left is not None and right is not None:
        return left if left == right and not isinstance(node.op, ast.Div) else None
    base, other = (left, node.right) if left is not None else (right, node.left)
    number = evaluator.value(other, frame)
    if base is None or not isinstance(number, (int, float)) or isinstance(node.op, (ast.MatMult, ast.Pow)):
        return None
    becomes_float = isinstance(node.op, ast.Div) or isinstance(number, float)
    return replace(base, dtype=_default_dtype(frame)) if becomes_float and base.dtype in _INTEGERS else base


def _of_attribute(evaluator: Evaluator, node: ast.Attribute, frame: CallFrame, depth: int) -> Tensor | None:
    return tensor_of(evaluator, node.value, frame, depth) if node.attr == "data" else None


def _of_choice(evaluator: Evaluator, node: ast.IfExp, frame: CallFrame, depth: int) -> Tensor | None:
    truth = evaluator.truth(node.test, frame)
    arms = (node.body, node.orelse)
    found = [
        tensor_of(evaluator, a, frame, depth) for a in (arms if isinstance(truth, Unknown) else (arms[not truth],))
    ]
    return found[0] if all(f == found[0] for f in found) else None


_DESCRIBE: dict[type, Callable[..., Tensor | None]] = {
    ast.Name: _of_name,
    ast.Call: _of_call,
    ast.BinOp: _of_operation,
    ast.Attribute: _of_attribute,
    ast.IfExp: _of_choice,
}
