"""What loops give their counters and batches, and what a collective makes the same on all ranks."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, CallResult, Unknown, worst
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["REDUCED", "is_reduced", "iterations_differ", "unpacked_value"]


_LOADER = re.compile(r"(?i)(data_?loader|_loader|^loader|dataloader|_dl$)")


REDUCED = re.compile(r"(?i)reduc|gather|sync|broadcast|avg_across|mean_across|global_")


def unpacked_value(evaluator: RankEvaluator, binding: Binding, frame: CallFrame) -> object:
    """An item of what a loop runs over, or one part of an unpacked value."""
    assert binding.value is not None
    if binding.how is Bound.ITEM:
        source = _source(binding.value, binding.part, frame)
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


def _source(node: ast.expr, part: int | None, frame: CallFrame) -> ast.expr | None:
    """What one part of a loop's items comes from: an argument of zip, what enumerate counts; None for the count."""
    if not isinstance(node, ast.Call) or part is None or any(isinstance(a, ast.Starred) for a in node.args):
        return node
    name = frame.module.names.of(node.func) or ""
    if name == "enumerate" and node.args:
        return None if part == 0 else node.args[0]
    if name == "zip" and part < len(node.args):
        return node.args[part]
    return _source(node.args[0], part, frame) if name.endswith("tqdm") and node.args else node


def _is_loader(evaluator: RankEvaluator, node: ast.expr, frame: CallFrame) -> bool:
    if isinstance(node, ast.Call):
        name = frame.module.names.of(node.func) or str(getattr(node.func, "attr", ""))
        wraps = name in ("enumerate", "zip", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "next") or name.endswith(
            "log_every"
        )
        if wraps:
            return any(_is_loader(evaluator, a, frame) for a in node.args)
        return name == "DataLoader"
    text = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if _LOADER.search(text):
        return True
    value = evaluator.value(node, frame)
    return isinstance(value, CallResult) and value.name == "DataLoader"


def is_reduced(module: Module, root: ast.AST, use: ast.Name) -> bool:
    """Whether a collective, or a helper called like one, made a name's value the same on all ranks before a use."""
    lines = _reduced(module, root).get(use.id)
    if lines is None:
        return False
    return min(lines) < use.lineno or not _is_fresh(module, use)


def _is_fresh(module: Module, use: ast.Name) -> bool:
    """Whether the value was made before the use in the same turn of the loop around it."""
    loop = next((p for p, _ in module.index.enclosing(use) if isinstance(p, (ast.For, ast.While))), None)
    bound = module.names.bindings(use.id, module.index.scope(use))
    if loop is None or bound is None:
        return True
    return any(loop.lineno < b.line < use.lineno for b in bound[1])


@lru_cache(maxsize=512)
def _reduced(module: Module, root: ast.AST) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    nodes = ast.walk(root) if not isinstance(root, ast.Module) else inner(root)
    for node in nodes:
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if module.names.of(node.func) in COLLECTIVES or REDUCED.search(last):
                for name in (n.id for a in node.args for n in ast.walk(a) if isinstance(n, ast.Name)):
                    found.setdefault(name, []).append(node.lineno)
    return found


def iterations_differ(statement: ast.For | ast.AsyncFor, name: str) -> bool:
    """Whether a loop's counter, or what is made of it, stands in a condition or call of its body: the turns may differ."""
    tests = [n.test for n in ast.walk(statement) if isinstance(n, (ast.If, ast.IfExp))]
    calls = [
        c for n in ast.walk(statement) if isinstance(n, ast.Call) for c in (*n.args, *(k.value for k in n.keywords))
    ]
    made = {name}
    for each in (n for n in ast.walk(statement) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)):
        if any(isinstance(n, ast.Name) and n.id in made for n in ast.walk(each.value)):
            made |= {t.id for t in each.targets if isinstance(t, ast.Name)}
    return any(isinstance(n, ast.Name) and n.id in made for each in (*tests, *calls) for n in ast.walk(each))
