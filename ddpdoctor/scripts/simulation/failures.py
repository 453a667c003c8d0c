"""Exceptions that only one rank may get: handlers that communicate although the others do not, or skip what the others do."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["single_rank_handler"]

_OF_ONE_RANK = frozenset(("", "Exception", "BaseException", "RuntimeError"))
"""Exceptions that need not happen on all ranks, unlike a missing file or module, Ctrl-C or the end of the data."""


def single_rank_handler(
    reach: CallReach, module: Module, statement: ast.Try, differs: Callable[[ast.expr], bool]
) -> ast.ExceptHandler | None:
    """The handler in which a rank diverges from the others if only that rank fails, None if there is none.

    Either only the handler communicates, or the body communicates and the handler continues after running out of memory or
    after a file of the rank's own could not be read.

    Args:
        differs: whether an expression has another value on other ranks.
    """
    body = any(_acts(reach, module, s) for s in (*statement.body, *statement.orelse))
    for handler in statement.handlers:
        if body is any(_acts(reach, module, s) for s in handler.body):
            continue
        names = {getattr(n, "attr", getattr(n, "id", "")) for n in _caught(handler)} or {""}
        if not body and names <= _OF_ONE_RANK:
            return handler
        if body and (_is_about_memory(handler, names) or _is_about_own_file(module, statement, names, differs)):
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


_OF_FILES = frozenset(("", "Exception", "OSError", "IOError", "FileNotFoundError", "EOFError", "RuntimeError"))
_READS = frozenset(("open", "torch.load", "numpy.load", "PIL.Image.open", "pandas.read_csv"))


def _is_about_own_file(
    module: Module, statement: ast.Try, names: set[str], differs: Callable[[ast.expr], bool]
) -> bool:
    """Whether the body reads a file that each rank names differently, and the handler catches what that raises."""
    if not names & _OF_FILES:
        return False
    loops = [p for p, _ in module.index.enclosing(statement) if isinstance(p, ast.For)]
    own = {n.id for loop in loops if differs(loop.iter) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for call in (n for s in statement.body for n in ast.walk(s) if isinstance(n, ast.Call) and n.args):
        used = {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}
        if module.names.of(call.func) in _READS and (used & own or differs(call.args[0])):
            return True
    return False
