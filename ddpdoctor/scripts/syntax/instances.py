"""Instances of the project's classes: through names, attributes and the arguments that calls pass for a parameter."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.syntax.classes import MAX_STEPS, only_assignment, resolve_class
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.node_cache import cached_per_node
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.project_file import F

__all__ = ["instance_of"]


@cached_per_node
def instance_of(module: F, value: ast.expr) -> tuple[F, ast.ClassDef] | None:
    """The class of an object and the module that defines it."""
    return _instance(module, value, 0)


def _instance(module: F, value: ast.expr, depth: int) -> tuple[F, ast.ClassDef] | None:
    if depth > MAX_STEPS:
        return None
    if isinstance(value, ast.Call):
        return resolve_class(module, value.func)
    if isinstance(value, ast.Attribute):
        assigned = only_assignment(module, value)
        return _instance(module, assigned, depth + 1) if assigned is not None else None
    bound = module.names.bindings(value.id, module.index.scope(value)) if isinstance(value, ast.Name) else None
    if bound is None or len(bound[1]) != 1:
        return None
    binding = bound[1][0]
    if binding.how is Bound.VALUE and isinstance(binding.value, (ast.Name, ast.Call)):
        return _instance(module, binding.value, depth + 1)
    if binding.how is Bound.PARAMETER and bound[0].function is not None:
        return _instance_of_parameter(module, binding, bound[0].function, depth)
    return None


def _instance_of_parameter(
    module: F, binding: Binding, function: Function, depth: int
) -> tuple[F, ast.ClassDef] | None:
    """The class in the annotation of a parameter, or the one that all calls by the function's own name pass for it."""
    annotation = binding.at.annotation if isinstance(binding.at, ast.arg) else None
    if isinstance(annotation, (ast.Name, ast.Attribute)):
        return resolve_class(module, annotation)
    owner = module.index.parents.get(function)
    is_method = isinstance(owner, ast.ClassDef)
    name = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
    names = [a.arg for a in function.args.args][is_method:]
    if not isinstance(binding.at, ast.arg) or binding.at.arg not in names:
        return None
    position = names.index(binding.at.arg)
    candidates = set()
    calls = module.call_index.by_name.get(name, ()) if not is_method or function.name == "__init__" else ()
    for call in calls:
        given = next((k.value for k in call.keywords if k.arg == binding.at.arg), None)
        given = given or (call.args[position] if position < len(call.args) else None)
        candidates.add(_instance(module, given, depth + 1) if given is not None else None)
    return candidates.pop() if len(candidates) == 1 else None
