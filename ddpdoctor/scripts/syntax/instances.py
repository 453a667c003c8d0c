"""Of which class of the project an object is: one of this file or of a module beside, made here or given as an argument."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.memory import once
from ddpdoctor.scripts.syntax.nodes import Function

if TYPE_CHECKING:
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["class_at", "instance_of", "kept"]

MAX_STEPS = 4


@once
def class_at(module: Module, node: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The class that a name stands for, and the module that defines it."""
    own = module.class_named(node)
    if own is not None:
        return module, own
    dotted = module.names.dotted(node)
    return _imported(module, dotted, 0) if dotted is not None else None


def _imported(module: Module, dotted: str, depth: int) -> tuple[Module, ast.ClassDef] | None:
    base, _, name = dotted.rpartition(".")
    other = module.beside(base) if base else None
    for binding in other.index.scopes[other.tree].names.get(name, ()) if other is not None else ():
        if isinstance(binding.at, ast.ClassDef) and other is not None:
            return other, binding.at
        if binding.how is Bound.IMPORT and other is not None and depth < MAX_STEPS:
            return _imported(other, binding.target, depth + 1)
    return None


@once
def instance_of(module: Module, value: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The class of an object, through names, `self.name` and the arguments of the calls that give a parameter."""
    return _instance(module, value, 0)


def _instance(module: Module, value: ast.expr, depth: int) -> tuple[Module, ast.ClassDef] | None:
    if depth > MAX_STEPS:
        return None
    if isinstance(value, ast.Call):
        return class_at(module, value.func)
    if isinstance(value, ast.Attribute):
        made = kept(module, value)
        return _instance(module, made, depth + 1) if made is not None else None
    bound = module.names.bindings(value.id, module.index.scope(value)) if isinstance(value, ast.Name) else None
    if bound is None or len(bound[1]) != 1:
        return None
    binding = bound[1][0]
    if binding.how is Bound.VALUE and isinstance(binding.value, (ast.Name, ast.Call)):
        return _instance(module, binding.value, depth + 1)
    if binding.how is Bound.PARAMETER and bound[0].function is not None:
        return _given(module, binding, bound[0].function, depth)
    return None


def kept(module: Module, value: ast.Attribute) -> ast.expr | None:
    """What the only assignment to `self.name` in its class gives."""
    if not isinstance(value.value, ast.Name) or value.value.id != "self":
        return None
    found = module.index.attributes.get(("self", value.attr), ())
    owner = module.index.class_of(value) if found else None
    own = [b for b in found if module.index.class_of(b.at) is owner]
    return own[0].value if len(own) == 1 and own[0].how is Bound.VALUE else None


def _given(module: Module, binding: Binding, function: Function, depth: int) -> tuple[Module, ast.ClassDef] | None:
    """What a parameter is annotated with, or what all calls by the function's own name give for it."""
    note = binding.at.annotation if isinstance(binding.at, ast.arg) else None
    if isinstance(note, (ast.Name, ast.Attribute)):
        return class_at(module, note)
    owner = module.index.parents.get(function)
    is_method = isinstance(owner, ast.ClassDef)
    name = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
    names = [a.arg for a in function.args.args][is_method:]
    if not isinstance(binding.at, ast.arg) or binding.at.arg not in names:
        return None
    at = names.index(binding.at.arg)
    found = set()
    for call in module.calls_by_name.get(name, ()) if not is_method or function.name == "__init__" else ():
        given = next((k.value for k in call.keywords if k.arg == binding.at.arg), None)
        given = given or (call.args[at] if at < len(call.args) else None)
        found.add(_instance(module, given, depth + 1) if given is not None else None)
    return found.pop() if len(found) == 1 else None
