"""The values of loop counters and batches, and names whose value a collective has made equal on all ranks."""

from __future__ import annotations

import ast
from functools import lru_cache

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown, worst
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, CallResult
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

__all__ = ["is_synchronized", "iterations_differ", "unpacked_value"]


_ITERATES_OVER_ARGUMENT = ("enumerate", "zip", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "next")


def unpacked_value(evaluator: Evaluator, binding: Binding, frame: CallFrame) -> object:
    """The value of a loop's target, or of one name of several that a value is unpacked into."""
    assert binding.value is not None
    if binding.how is Bound.ITEM:
        source = _source_of_item(binding.value, binding.part, frame)
        if source is None:
            return Unknown.SAME
        if _is_loader(evaluator, source, frame):
            return Unknown.DATA
        items = evaluator.value(source, frame)
        return worst(*items) if isinstance(items, (list, tuple)) else worst(items)
    value = evaluator.value(binding.value, frame)
    if isinstance(value, (tuple, list)) and binding.part is not None and binding.part < len(value):
        return value[binding.part]
    return worst(value)


def _source_of_item(node: ast.expr, part: int | None, frame: CallFrame) -> ast.expr | None:
    """The iterable that one part of a loop's items comes from: an argument of zip or enumerate; None for enumerate's count."""
    if not isinstance(node, ast.Call) or part is None or any(isinstance(a, ast.Starred) for a in node.args):
        return node
    name = frame.module.names.of(node.func) or ""
    if name == "enumerate" and node.args:
        return None if part == 0 else node.args[0]
    if name == "zip" and part < len(node.args):
        return node.args[part]
    return _source_of_item(node.args[0], part, frame) if name.endswith("tqdm") and node.args else node


def _is_loader(evaluator: Evaluator, node: ast.expr, frame: CallFrame) -> bool:
    if isinstance(node, ast.Call):
        name = frame.module.names.of(node.func) or str(getattr(node.func, "attr", ""))
        if name in _ITERATES_OVER_ARGUMENT or name.endswith("log_every"):
            return any(_is_loader(evaluator, a, frame) for a in node.args)
        return name == "DataLoader"
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if assumptions.is_data_loader(name):
        return True
    value = evaluator.value(node, frame)
    return isinstance(value, CallResult) and value.name == "DataLoader"


def is_synchronized(module: Module, root: ast.AST, use: ast.Name) -> bool:
    """Whether a collective, or a helper named like one, made the value of a name equal on all ranks before a use."""
    lines = _synchronized_names(module, root).get(use.id)
    if lines is None:
        return False
    return min(lines) < use.lineno or not _is_assigned_in_iteration(module, use)


def _is_assigned_in_iteration(module: Module, use: ast.Name) -> bool:
    """Whether the value was assigned before the use in the same iteration of the loop around it."""
    loop = next((p for p, _ in module.index.enclosing(use) if isinstance(p, (ast.For, ast.While))), None)
    bound = module.names.bindings(use.id, module.index.scope(use))
    if loop is None or bound is None:
        return True
    return any(loop.lineno < b.line < use.lineno for b in bound[1])


@lru_cache(maxsize=512)
def _synchronized_names(module: Module, root: ast.AST) -> dict[str, list[int]]:
    """The names that are passed to collectives, with the lines of the calls."""
    lines: dict[str, list[int]] = {}
    nodes = ast.walk(root) if not isinstance(root, ast.Module) else inner(root)
    for node in nodes:
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if module.names.of(node.func) in COLLECTIVES or assumptions.synchronizes(last):
                for name in (n.id for a in node.args for n in ast.walk(a) if isinstance(n, ast.Name)):
                    lines.setdefault(name, []).append(node.lineno)
    return lines


def iterations_differ(statement: ast.For | ast.AsyncFor, name: str) -> bool:
    """Whether the counter of a loop, or a value computed from it, is part of a condition or a call in its body."""
    tests = [n.test for n in ast.walk(statement) if isinstance(n, (ast.If, ast.IfExp))]
    arguments = [
        c for n in ast.walk(statement) if isinstance(n, ast.Call) for c in (*n.args, *(k.value for k in n.keywords))
    ]
    derived = {name}
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _uses(node.value, derived):
            derived |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return any(_uses(node, derived) for node in (*tests, *arguments))


def _uses(node: ast.expr, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))
