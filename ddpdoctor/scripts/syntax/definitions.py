"""The function of the project that an expression names: of this file, a method, or imported from a module next to it."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.syntax.classes import MAX_STEPS, Target, class_of_value, method
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.instances import instance_of
from ddpdoctor.scripts.syntax.project_file import F

__all__ = ["target_of"]


def target_of(module: F, func: ast.expr, depth: int = 0) -> Target[F] | None:
    """The function that an expression names; for a class, its `__init__`. None if the project does not define it."""
    if depth > MAX_STEPS:
        return None
    if isinstance(func, ast.Name):
        return _target_of_name(module, func, depth)
    if isinstance(func, ast.Attribute):
        owner = class_of_value(module, func.value)
        if owner is not None:
            return method(module, owner, func.attr)
        dotted = module.names.dotted(func)
        if dotted is not None:
            return _imported_function(module, dotted, depth)
        return _method_of_instance(module, func.value, func.attr)
    return None


def _target_of_name(module: F, func: ast.Name, depth: int) -> Target[F] | None:
    bound = module.names.bindings(func.id, module.index.scope(func))
    if bound is None:
        return None
    defined = [b for b in bound[1] if b.how in (Bound.FUNCTION, Bound.CLASS)]
    if defined:
        node = defined[-1].at
        if isinstance(node, ast.ClassDef):
            return method(module, node, "__init__")
        return Target(module, node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    imported = next((b for b in bound[1] if b.how is Bound.IMPORT), None)
    if imported is not None:
        return _imported_function(module, imported.target, depth)
    value = bound[1][0].value if len(bound[1]) == 1 and bound[1][0].how is Bound.VALUE else None
    if isinstance(value, ast.Name):
        return target_of(module, value, depth + 1)
    return _method_of_instance(module, value, "__call__") if isinstance(value, ast.Call) else None


def _method_of_instance(module: F, value: ast.expr, name: str) -> Target[F] | None:
    instance = instance_of(module, value)
    return method(*instance, name) if instance is not None else None


def _imported_function(module: F, dotted: str, depth: int) -> Target[F] | None:
    base, _, name = dotted.rpartition(".")
    other = module.beside(base) if base else None
    if other is None:
        return None
    for binding in other.index.scopes[other.tree].names.get(name, ()):
        if isinstance(binding.at, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return Target(other, binding.at)
        if isinstance(binding.at, ast.ClassDef):
            return method(other, binding.at, "__init__")
        if binding.how is Bound.IMPORT and depth < MAX_STEPS:
            return _imported_function(other, binding.target, depth + 1)
    return None
