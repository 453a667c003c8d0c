"""Exceptions that only one rank may get: handlers that communicate although the others do not, or skip what the others do."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["single_rank_handler"]

_OF_ONE_RANK = frozenset(("", "Exception", "BaseException", "RuntimeError"))
"""Exceptions that need not happen on all ranks, unlike a missing file or module, Ctrl-C or the end of the data."""


def single_rank_handler(reach: CallReach, module: Module, statement: ast.Try) -> ast.ExceptHandler | None:
    """The handler in which a rank diverges from the others if only that rank fails, None if there is none.

    Either only the handler communicates, or the body communicates and the handler continues after running out of memory.
    """
    body = any(_acts(reach, module, s) for s in (*statement.body, *statement.orelse))
    for handler in statement.handlers:
        if body is any(_acts(reach, module, s) for s in handler.body):
            continue
        names = {getattr(n, "attr", getattr(n, "id", "")) for n in _caught(handler)} or {""}
        if names <= _OF_ONE_RANK if not body else _is_about_memory(handler, names):
            return handler
    return None


def _acts(reach: CallReach, module: Module, statement: ast.stmt) -> bool:
    return any(reach.call(module, c) for c in reach.calls(module, statement))


def _caught(handler: ast.ExceptHandler) -> list[ast.expr]:
    caught = handler.type
    return list(caught.elts) if isinstance(caught, ast.Tuple) else [] if caught is None else [caught]


def _is_about_memory(handler: ast.ExceptHandler, names: set[str]) -> bool:
    texts = [n.value for s in handler.body for n in ast.walk(s) if isinstance(n, ast.Constant)]
    mentions_memory = any(isinstance(t, str) and "out of memory" in t for t in texts)
    return "OutOfMemoryError" in names or ("RuntimeError" in names and mentions_memory)
