"""When gradients are reduced and when the optimizer steps: both conditions evaluated for the micro batches of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner

__all__ = ["unsynchronized_steps"]

_METHODS = ("set_requires_gradient_sync", "set_is_last_backward")
_WINDOW = 4
"""What stands for an unknown number of micro batches."""
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Switch:
    """A place that decides whether the next backward pass reduces gradients. `value`: None if it always turns it off."""

    node: ast.AST
    value: ast.expr | None
    inverted: bool
    loop: ast.For


def unsynchronized_steps(module: Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Switches that leave reduction off in a micro batch after which the optimizer steps, with that step."""
    if "no_sync" not in module.text and "sync" not in module.text:
        return
    yield from _never_on(module)
    for switch in _switches(module):
        for step, tests in _steps(module, switch.loop):
            if _is_violated(module, switch, tests):
                yield switch.node, step
                break


def _never_on(module: Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """`set_requires_gradient_sync(False)` in a file that never turns it on again."""
    calls = [c for name in _METHODS[:1] for c in module.method_calls.get(name, ())]
    steps = [c for c in module.method_calls.get("step", ()) if not c.args]
    off = [c for c in calls if c.args and isinstance(c.args[0], ast.Constant) and c.args[0].value is False]
    if off and len(off) == len(calls) and steps:
        yield off[0], steps[0]
    assigned = [
        n
        for n in module.index.parents
        if isinstance(n, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == "require_backward_grad_sync" for t in n.targets)
    ]
    never = [n for n in assigned if isinstance(n.value, ast.Constant) and n.value.value is False]
    if never and len(never) == len(assigned) and steps:
        yield never[0], steps[0]


def _switches(module: Module) -> Iterator[Switch]:
    for node in list(module.index.parents):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Attribute) and t.attr == "require_backward_grad_sync" for t in node.targets
        ):
            value, inverted = node.value, False
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS[:1]:
            if not node.args:
                continue
            value, inverted = node.args[0], False
        elif isinstance(node, ast.IfExp) and _has_no_sync(node.body) is not _has_no_sync(node.orelse):
            value, inverted = node.test, _has_no_sync(node.body)
        elif isinstance(node, ast.If) and (quiet := _quiet_branch(node)) is not None:
            value, inverted = node.test, quiet
        else:
            continue
        loop = _loop_of(module, node)
        tests = _tests(module, node, loop) if loop is not None else [ast.Constant(0)]
        if loop is not None and not tests and not isinstance(value, ast.Constant):
            yield Switch(node, value, inverted, loop)


def _quiet_branch(node: ast.If) -> bool | None:
    """Which branch runs its backward pass under no_sync, if the other one runs it without: True for the body."""
    sides = [[n for s in side for n in ast.walk(s)] for side in (node.body, node.orelse)]
    quiet = [
        any(_has_no_sync(i.context_expr) for n in side if isinstance(n, ast.With) for i in n.items) for side in sides
    ]
    passes = [
        any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in side)
        and not any(isinstance(n, ast.If) for n in side)
        for side in sides
    ]
    return quiet[0] if all(passes) and quiet[0] is not quiet[1] else None


def _has_no_sync(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync"


def _loop_of(module: Module, node: ast.AST) -> ast.For | None:
    for parent, _ in module.index.enclosing(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(parent, ast.For):
            return parent
    return None


def _tests(module: Module, node: ast.AST, loop: ast.For) -> list[ast.expr]:
    """The conditions of the branches between a loop and a node in it; a node in an else branch has none that is known."""
    tests: list[ast.expr] = []
    for parent, child in module.index.enclosing(node):
        if parent is loop:
            break
        if isinstance(parent, ast.If):
            in_body = child in parent.body
            tests.append(parent.test if in_body else ast.UnaryOp(op=ast.Not(), operand=parent.test))
        elif isinstance(parent, ast.For | ast.While | ast.Try):
            return [ast.Name(id="?")]
    return tests


def _steps(module: Module, loop: ast.For) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """The steps of optimizers in a loop that are taken in some turns only."""
    for call in inner(loop):
        is_step = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        if not isinstance(call, ast.Call) or not is_step or _loop_of(module, call) is not loop:
            continue
        base = ast.unparse(call.func).lower()
        if "opt" not in base and "scaler" not in base:
            continue
        tests = _tests(module, call, loop)
        if tests and _follows_backward(loop, call):
            yield call, tests


def _follows_backward(loop: ast.For, step: ast.Call) -> bool:
    passes = [
        n.lineno
        for n in inner(loop)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "backward"
    ]
    return bool(passes) and all(line < step.lineno for line in passes)


def _is_violated(module: Module, switch: Switch, tests: list[ast.expr]) -> bool:
    """Whether some turn steps without reduction, for every choice of what is unknown that can be evaluated."""
    counter, first = _counter(switch.loop)
    if counter is None or switch.value is None:
        return False
    judged = False
    for window in (_WINDOW, _WINDOW + 1):
        names: dict[str, int] = {}
        results = []
        for turn in range(first, first + window * _ROUNDS):
            values = _Values(module, switch.loop, counter, turn, window, window * _ROUNDS, names)
            on = values.truth(switch.value)
            steps = [values.truth(t) for t in tests]
            if on is None or any(s is None for s in steps) or len(names) > 1:
                return False
            results.append((bool(on) is not switch.inverted, all(steps)))
        stepped = [on for on, step in results if step]
        if not stepped or all(stepped):
            return False
        judged = True
    return judged


def _counter(loop: ast.For) -> tuple[str | None, int]:
    """The variable that counts the turns of a loop, and its first value."""
    target, source = loop.target, loop.iter
    is_call = isinstance(source, ast.Call) and isinstance(source.func, ast.Name)
    if not isinstance(source, ast.Call) or not is_call or not isinstance(source.func, ast.Name):
        return None, 0
    if source.func.id == "range" and isinstance(target, ast.Name) and len(source.args) == 1:
        return target.id, 0
    if source.func.id == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        start = [k.value for k in source.keywords if k.arg == "start"] + source.args[1:2]
        if not start:
            return target.elts[0].id, 0
        if isinstance(start[0], ast.Constant) and isinstance(start[0].value, int):
            return target.elts[0].id, start[0].value
    return None, 0


class _Values:
    """Evaluates conditions for one turn of a loop. Unknown names stand for the number of micro batches."""

    def __init__(
        self, module: Module, loop: ast.For, counter: str, turn: int, window: int, length: int, names: dict[str, int]
    ) -> None:
        self.module, self.loop, self.counter, self.turn = module, loop, counter, turn
        self.window, self.length, self.names = window, length, names

    def truth(self, node: ast.expr, depth: int = 0) -> int | None:
        """The value of an expression; None if it cannot be evaluated."""
        if depth > 8:
            return None
        if isinstance(node, ast.Constant):
            return int(node.value) if isinstance(node.value, bool | int) else None
        if isinstance(node, ast.Name):
            return self._name(node, depth)
        if isinstance(node, ast.Attribute):
            self.names.setdefault(ast.unparse(node), self.window)
            return self.window
        if isinstance(node, ast.Call):
            is_length = isinstance(node.func, ast.Name) and node.func.id == "len" and "len(" in ast.unparse(node)
            return self.length if is_length else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.truth(node.operand, depth + 1)
            return None if value is None else int(not value)
        if isinstance(node, ast.BoolOp):
            values = [self.truth(v, depth + 1) for v in node.values]
            known = [v for v in values if v is not None]
            if len(known) < len(values):
                return None
            return int(all(known) if isinstance(node.op, ast.And) else any(known))
        if isinstance(node, ast.BinOp):
            return self._binary(node, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node, depth)
        return None

    def _name(self, node: ast.Name, depth: int) -> int | None:
        if node.id == self.counter:
            return self.turn
        bound = self.module.names.bindings(node.id, self.module.index.scope(node))
        if bound is None:
            return None
        values = [b.value for b in bound[1]]
        made = values[0] if len(values) == 1 else None
        if made is not None and (isinstance(made, ast.Constant) or made in set(inner(self.loop))):
            return self.truth(made, depth + 1)
        if len(values) != 1:
            return None
        self.names.setdefault(node.id, self.window)
        return self.window

    def _binary(self, node: ast.BinOp, depth: int) -> int | None:
        left, right = self.truth(node.left, depth + 1), self.truth(node.right, depth + 1)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Mod | ast.FloorDiv) and right == 0:
            return None
        table = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        if type(node.op) in table:
            return table[type(node.op)]
        if isinstance(node.op, ast.Mod):
            return left % right
        return left // right if isinstance(node.op, ast.FloorDiv) else None

    def _compare(self, node: ast.Compare, depth: int) -> int | None:
        left, right = self.truth(node.left, depth + 1), self.truth(node.comparators[0], depth + 1)
        if left is None or right is None:
            return None
        op = node.ops[0]
        results: list[tuple[type, bool]] = [
            (ast.Eq, left == right),
            (ast.NotEq, left != right),
            (ast.Lt, left < right),
            (ast.LtE, left <= right),
            (ast.Gt, left > right),
            (ast.GtE, left >= right),
        ]
        return next((int(result) for kind, result in results if isinstance(op, kind)), None)
