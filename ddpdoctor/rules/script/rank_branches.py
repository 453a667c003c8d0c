"""Branches that depend on the rank: which ranks reach a place in the script."""

from __future__ import annotations

import ast

from ddpdoctor.rules.script.script_questions import names_in, readers_at
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.assumptions import HELPER_FUNCTIONS, RANK_ATTRIBUTES, RANK_NAMES
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner

__all__ = [
    "RANK_WORDS",
    "blocks",
    "depends_on_rank",
    "in_rank_branch",
    "ranks_reaching",
    "runs_one_rank_first",
    "truths",
]

MOST_DEPTH_OF_CALLS = 3
RANK_WORDS = frozenset((*RANK_NAMES, *RANK_ATTRIBUTES, *HELPER_FUNCTIONS)) - {
    "world_size",
    "get_world_size",
    "num_processes",
}
"""Names that make a condition depend on the rank, even if its value is unknown."""


def in_rank_branch(module: Module, node: ast.AST) -> bool:
    """Whether a node is in a branch of its function that only some ranks enter, or may enter."""
    places = rank_contexts(module, module.index.function_of(node))
    readers = readers_at(module, places, True)
    for parent, child in module.index.enclosing(node):
        if parent in module.index.scopes:
            if any(_only_main(d) for d in getattr(parent, "decorator_list", ())):
                return True
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and _left_before(
                module, parent, node, readers
            ):
                return True
        test = parent.test if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and child is not parent.test else None
        if test is not None and _depends_on_rank(test, readers):
            return True
    return False


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of statements directly under a node."""
    bodies = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [b for b in bodies if isinstance(b, list)]


def ranks_reaching(module: Module, node: ast.AST) -> list[bool] | None:
    """Which ranks reach a node, by the conditions in its function; None if a condition is unknown."""
    readers = readers_at(module, rank_contexts(module, module.index.function_of(node)), True)
    reaches = [True] * len(readers)
    for parent, child in module.index.enclosing(node):
        if parent in module.index.scopes:
            is_left = isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and _left_before(
                module, parent, node, readers
            )
            return None if is_left or bool(getattr(parent, "decorator_list", ())) else reaches
        test = parent.test if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test else None
        if test is not None:
            truths_of = [r.truth(test) for r in readers]
            body = getattr(parent, "body", None)
            wanted = child in body if isinstance(body, list) else child is body
            if any(isinstance(t, Unknown) for t in truths_of):
                if names_in(test) & RANK_WORDS or Unknown.VARIES in truths_of:
                    return None
                continue
            reaches = [c and t is wanted for c, t in zip(reaches, truths_of, strict=True)]
    return reaches


def _only_main(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return "rank_zero" in text or "main_process" in text or "master" in text


def depends_on_rank(module: Module, test: ast.expr) -> bool:
    """Whether a condition differs between the ranks of its function, or may differ."""
    return _depends_on_rank(test, readers_at(module, rank_contexts(module, module.index.function_of(test)), True))


def _depends_on_rank(test: ast.expr, readers: tuple[RankEvaluator, ...]) -> bool:
    values = [r.truth(test) for r in readers]
    if any(f is Unknown.VARIES for f in values) or any(f != values[0] for f in values[1:]):
        return True
    return isinstance(values[0], Unknown) and bool(names_in(test) & RANK_WORDS)


def _left_before(module: Module, function: ast.AST, node: ast.AST, readers: tuple[RankEvaluator, ...]) -> bool:
    """Whether some ranks return from the function before they reach the node."""
    for statement in getattr(function, "body", ()):
        if statement.lineno >= node.lineno:  # type: ignore[attr-defined]
            return False
        if isinstance(statement, ast.If) and _depends_on_rank(statement.test, readers):
            leaves = [isinstance(n, (ast.Return, ast.Raise)) for n in inner(statement)]
            if any(leaves):
                return True
    return False


def runs_one_rank_first(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether one rank runs it before the others: between barriers in branches, or in a `..._first` context.

    A function that is only called so is followed to its calls.
    """
    for parent, _ in module.index.enclosing(node):
        items = parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else []
        if any("first" in ast.unparse(item.context_expr) for item in items):
            return True
        if any(_lets_one_go_first(module, item.context_expr) for item in items):
            return True
    function = module.index.function_of(node)
    waits = [c for c in module.calls("dist.barrier") if module.index.function_of(c) is function]
    if any(c.lineno < node.lineno and in_rank_branch(module, c) for c in waits):  # type: ignore[attr-defined]
        return True
    callers = [] if function is None or depth > MOST_DEPTH_OF_CALLS else module.callers.get(function, [])
    return bool(callers) and all(runs_one_rank_first(module, call, depth + 1) for call in callers)


def _lets_one_go_first(module: Module, context: ast.expr) -> bool:
    """Whether a context of the project lets some ranks wait in a barrier before its body, and the others after it."""
    target = module.target(context) if isinstance(context, ast.Call) else None
    if target is None:
        return False
    other, function = target.module, target.function
    waits = [c for c in other.calls("dist.barrier") if other.index.function_of(c) is function]
    yields = [n for n in inner(function) if isinstance(n, ast.Yield)]
    before = [c for c in waits if yields and c.lineno < yields[0].lineno]
    return bool(before) and len(waits) > len(before) and all(in_rank_branch(other, c) for c in before)


def truths(module: Module, test: ast.expr) -> list[bool | Unknown]:
    """Whether a condition is true on each rank; a variable named like a rank is taken to hold it."""
    places = rank_contexts(module, module.index.function_of(test))
    return [reader.truth(test) for reader in readers_at(module, places, True)]
