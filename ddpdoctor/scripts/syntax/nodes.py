"""Walks over syntax trees in textual order, without operators and other leaves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["SCOPES", "Function", "children_of", "inner"]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)


def children_of(node: ast.AST) -> list[ast.AST]:
    """The nodes directly under a node, in textual order."""
    children: list[ast.AST] = []
    for name in _CHILD_FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children


class _ChildFields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each type of node that hold nodes to visit: no strings, numbers or operators. Filled on first use."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        skipped = {
            "arg",
            "attr",
            "conversion",
            "ctx",
            "id",
            "kind",
            "level",
            "module",
            "op",
            "ops",
            "simple",
            "type_comment",
        }
        self[kind] = tuple(name for name in kind._fields if name not in skipped) if kind is not ast.Constant else ()
        return self[kind]


_CHILD_FIELDS = _ChildFields()


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes under it in textual order, without the bodies of nested functions and classes."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if current is not node and isinstance(current, SCOPES):
            continue
        children = children_of(current)
        children.reverse()
        stack += children
