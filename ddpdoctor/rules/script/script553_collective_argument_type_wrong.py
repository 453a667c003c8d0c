"""SCRIPT553: what a collective gets or returns is of another type than the script assumes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, dist_of, point, replace, safe
from ddpdoctor.rules.script.script_questions import argument, has_more, in_try, last_value, value
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules

_OPERATIONS = {"dist.all_reduce": 1, "dist.reduce": 2, "dist.reduce_scatter": 2, "dist.reduce_scatter_tensor": 2}
_TENSORS = {
    "dist.all_reduce": 0,
    "dist.broadcast": 0,
    "dist.reduce": 0,
    "dist.all_gather": 1,
    "dist.send": 0,
    "dist.isend": 0,
}
_IN_PLACE = ("dist.all_reduce", "dist.broadcast", "dist.reduce", "dist.all_gather", "dist.broadcast_object_list")
_KNOWN = {"sum": "SUM", "max": "MAX", "min": "MIN", "avg": "AVG", "product": "PRODUCT"}
_WORK = ("wait", "is_completed", "is_success", "get_future", "result", "synchronize")


@cause(
    "SCRIPT553",
    "collective-argument-type-wrong",
    Severity.ERROR,
    signatures=(r"Invalid function argument\. Expected parameter `tensor\w*` of type torch\.Tensor",),
)
def collective_argument_type_wrong(script: Script) -> Iterator[Finding]:
    """A collective gets a string or a number, or its missing result is used.

    ## Why it matters
    `op="mean"` and a Python number fail with a TypeError that ends in `of type torch.Tensor`. The result of a blocking
    collective is None, so that its next use fails.

    ## Fix
    Pass a tensor and a `dist.ReduceOp`, and read the tensor that was passed.

    ## Example
        # before
        total = dist.all_reduce(torch.tensor(loss.item()), op="sum")
        print(total.item())
        # AttributeError: 'NoneType' object has no attribute 'item'

        # after
        total = torch.tensor(loss.item())
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        print(total.item())
    """
    for module in modules(script):
        for name, position in _OPERATIONS.items():
            for call in module.calls(name):
                given = argument(call, position, "op")
                text = value(module, given)
                if given is not None and isinstance(text, str) and not text.startswith("dist."):
                    yield point(
                        module,
                        given,
                        f"op={code(module, given, 30)} is a string, not a ReduceOp",
                        "dist.ReduceOp.SUM",
                        label="TypeError: not a ReduceOp",
                        fix="Pass a ReduceOp, such as `dist.ReduceOp.SUM`, which sums the values.",
                        edits=safe(_operation(module, given, text)),
                    )
        for name, position in _TENSORS.items():
            for call in module.calls(name):
                given = argument(call, position, "tensor")
                if given is not None and _is_number(module, given) and not in_try(module, call):
                    yield point(
                        module,
                        given,
                        f"{code(module, given, 40)} is a Python number, not a tensor",
                        "a tensor",
                        label="TypeError: expected a tensor",
                        fix="Pass a tensor, and read it after the call.",
                    )
        for call in module.calls("dist.send", "dist.isend"):
            peer = argument(call, 1, "dst", "group_dst")
            if peer is None and len(call.args) == 1 and not has_more(call):
                yield point(
                    module,
                    call,
                    f"{code(module, call, 50)} does not name a destination",
                    "dst=",
                    label="an error: dst is missing",
                    fix="Pass `dst=`, the rank that receives.",
                )
        for call in module.calls(*_IN_PLACE):
            use = _use_of_none(module, call)
            if use is not None:
                tensor = call.args[0] if call.args else call
                yield point(
                    module,
                    call,
                    f"{code(module, call.func, 40)}() returns None, but line {use.lineno} uses its result",
                    "the tensor that was passed",
                    label="it works in place",
                    fix=f"Read {code(module, tensor, 40)} after the call.",
                )


def _operation(module: Module, given: ast.expr, text: str) -> tuple[Edit, ...]:
    known = _KNOWN.get(text.lower())
    if known is None or not isinstance(given, ast.Constant):
        return ()
    return (replace(module, given, f"{dist_of(module)}.ReduceOp.{known}"),)


def _is_number(module: Module, node: ast.expr) -> bool:
    """Whether an expression is certainly a Python number: `loss.item()`, `len(x)`, `0.5`."""
    made = last_value(module, node)
    if isinstance(made, ast.Constant):
        return isinstance(made.value, (int, float))
    if isinstance(made, ast.UnaryOp):
        return _is_number(module, made.operand)
    if not isinstance(made, ast.Call):
        return False
    is_item = isinstance(made.func, ast.Attribute) and made.func.attr == "item" and not made.args
    return is_item or module.names.of(made.func) in ("len", "float", "int")


def _use_of_none(module: Module, call: ast.Call) -> ast.Name | None:
    """A use of the result of a blocking collective that fails for None."""
    flag = argument(call, None, "async_op")
    statement = module.index.parents.get(call)
    if flag is not None or any(k.arg is None for k in call.keywords) or len(call.args) > 3:
        return None
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    bound = module.names.bindings(target.id, module.index.scope(target)) if isinstance(target, ast.Name) else None
    if bound is None or len(bound[1]) != 1 or bound[1][0].how is not Bound.VALUE or not isinstance(target, ast.Name):
        return None
    for node in module.index.parents:
        if not isinstance(node, ast.Name) or node.id != target.id or not isinstance(node.ctx, ast.Load):
            continue
        parent = module.index.parents[node]
        fails = isinstance(parent, ast.BinOp) or (isinstance(parent, ast.Attribute) and parent.attr not in _WORK)
        if fails and module.index.scope(node) is bound[0] and node.lineno > call.lineno:
            return node
    return None
