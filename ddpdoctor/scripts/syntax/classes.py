"""Classes of a project: the class of a name or a value, its methods with those of its bases, and its base classes."""

from __future__ import annotations

import ast
from typing import Generic, TypeVar

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.node_cache import cached_per_node
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.project_file import F, ProjectFile

__all__ = [
    "MAX_STEPS",
    "Target",
    "class_named",
    "class_of_value",
    "is_a",
    "made_of",
    "method",
    "only_assignment",
    "resolve_class",
]

MAX_STEPS = 4
"""Most imports and assignments that one lookup follows."""
MAX_BASES = 5
"""Most levels of base classes that one lookup follows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Target(Generic[T]):
    """The function that a call runs, and the module that defines it."""

    module: T
    function: Function


def class_named(module: ProjectFile, node: ast.expr) -> ast.ClassDef | None:
    """The class of this file that a name stands for."""
    if not isinstance(node, ast.Name):
        return None
    bound = module.names.bindings(node.id, module.index.scope(node))
    last = bound[1][-1].at if bound is not None else None
    return last if isinstance(last, ast.ClassDef) else None


@cached_per_node
def resolve_class(module: F, node: ast.expr) -> tuple[F, ast.ClassDef] | None:
    """The class that a name stands for, and the module of the project that defines it."""
    own = class_named(module, node)
    if own is not None:
        return module, own
    dotted = module.names.dotted(node)
    return _imported_class(module, dotted, 0) if dotted is not None else None


def _imported_class(module: F, dotted: str, depth: int) -> tuple[F, ast.ClassDef] | None:
    base, _, name = dotted.rpartition(".")
    other = module.beside(base) if base else None
    for binding in other.index.scopes[other.tree].names.get(name, ()) if other is not None else ():
        if isinstance(binding.at, ast.ClassDef) and other is not None:
            return other, binding.at
        if binding.how is Bound.IMPORT and other is not None and depth < MAX_STEPS:
            return _imported_class(other, binding.target, depth + 1)
    return None


@cached_per_node
def class_of_value(module: ProjectFile, value: ast.expr) -> ast.ClassDef | None:
    """The class of this file that an expression is an instance of: `self`, a name or attribute bound to `Class(…)`."""
    if isinstance(value, ast.Attribute):
        return _class_of_attribute(module, value)
    if not isinstance(value, ast.Name):
        return _class_of_constructor(module, value)
    function = module.index.function_of(value)
    if function is not None and function.args.args and value.id == function.args.args[0].arg:
        owner = module.index.parents.get(function)
        if isinstance(owner, ast.ClassDef):
            return owner
    bound = module.names.bindings(value.id, module.index.scope(value))
    if bound is None or len(bound[1]) != 1:
        return None
    binding = bound[1][0]
    if binding.how is Bound.PARAMETER and isinstance(binding.at, ast.arg):
        annotation = binding.at.annotation
        return class_named(module, annotation) if isinstance(annotation, ast.Name) else None
    is_value = binding.how is Bound.VALUE and binding.value is not None
    return _class_of_constructor(module, binding.value) if is_value else None


def _class_of_attribute(module: ProjectFile, value: ast.Attribute) -> ast.ClassDef | None:
    """The class of the object in `self.name`, if one assignment in that class determines it."""
    assignments = module.index.attributes.get(("self", value.attr), ())
    owner = class_of_value(module, value.value) if assignments else None
    own = [b for b in assignments if owner is not None and module.index.class_of(b.at) is owner]
    assigned = own[0].value if len(own) == 1 and own[0].how is Bound.VALUE else None
    return class_of_value(module, assigned) if isinstance(assigned, (ast.Name, ast.Call)) else None


def _class_of_constructor(module: ProjectFile, value: ast.expr | None) -> ast.ClassDef | None:
    return class_named(module, value.func) if isinstance(value, ast.Call) else None


def only_assignment(module: ProjectFile, value: ast.Attribute) -> ast.expr | None:
    """What the only assignment to `self.name` in its class assigns."""
    if not isinstance(value.value, ast.Name) or value.value.id != "self":
        return None
    assignments = module.index.attributes.get(("self", value.attr), ())
    owner = module.index.class_of(value) if assignments else None
    own = [b for b in assignments if module.index.class_of(b.at) is owner]
    return own[0].value if len(own) == 1 and own[0].how is Bound.VALUE else None


def made_of(module: ProjectFile, value: ast.expr) -> ast.Call | None:
    """The call whose result is the only value of a name, or of an attribute of its class."""
    bound = module.names.bindings(value.id, module.index.scope(value)) if isinstance(value, ast.Name) else None
    made = only_assignment(module, value) if isinstance(value, ast.Attribute) else None
    if bound is not None and len(bound[1]) == 1:
        made = bound[1][0].value
    return made if isinstance(made, ast.Call) else None


def method(module: F, owner: ast.ClassDef, name: str, depth: int = 0) -> Target[F] | None:
    """A method of a class or of its bases in the project."""
    own = _own_methods(module, owner).get(name)
    if own is not None:
        return Target(module, own)
    for base in owner.bases:
        parent = resolve_class(module, base)
        if parent is not None and parent[1] is not owner and depth < MAX_BASES:
            inherited = method(parent[0], parent[1], name, depth + 1)
            if inherited is not None:
                return inherited
    return None


@cached_per_node
def _own_methods(module: ProjectFile, owner: ast.ClassDef) -> dict[str, Function]:
    methods = [m for m in owner.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {m.name: m for m in reversed(methods)}


def is_a(module: ProjectFile, owner: ast.ClassDef, *names: str, depth: int = 0) -> bool:
    """Whether a class is derived from one with these short names, directly or through classes of this file."""
    for base in owner.bases:
        if module.names.of(base) in names:
            return True
        parent = class_named(module, base)
        is_other = parent is not None and parent is not owner and depth < MAX_BASES
        if parent is not None and is_other and is_a(module, parent, *names, depth=depth + 1):
            return True
    return False
