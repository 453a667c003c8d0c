"""The nodes of a syntax tree that are worth a visit, in textual order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["SCOPES", "Function", "children_of", "inner"]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)


def children_of(node: ast.AST) -> list[ast.AST]:
    """The nodes directly under a node, in textual order."""
    found: list[ast.AST] = []
    for name in _WITH_NODES[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


class _WithNodes(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each type of node that can hold nodes worth a visit: no texts, numbers, operators."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        without = {
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
        self[kind] = tuple(name for name in kind._fields if name not in without) if kind is not ast.Constant else ()
        return self[kind]


_WITH_NODES = _WithNodes()


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes under a node, itself included, without the bodies of functions and classes in it; in textual order."""
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        if each is not node and isinstance(each, SCOPES):
            continue
        children = children_of(each)
        children.reverse()
        stack += children
