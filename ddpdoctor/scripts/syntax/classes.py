"""Classes of a file: what an expression is an instance of, methods with those of bases, what a class is derived from."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpdoctor.scripts.syntax.index import Bound, Index
from ddpdoctor.scripts.syntax.instances import class_at, kept
from ddpdoctor.scripts.syntax.memory import once
from ddpdoctor.scripts.syntax.names import Names
from ddpdoctor.scripts.syntax.nodes import Function

if TYPE_CHECKING:
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["Classes", "Target"]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The function that a call runs, and the module that defines it."""

    module: Module
    function: Function


class Classes:
    """What can be asked about the classes of one file; `Module` adds the rest."""

    def __init__(self, index: Index, names: Names) -> None:
        self.index = index
        self.names = names
        self.memory: dict[object, dict[Any, Any]] = {}
        self._methods: dict[ast.ClassDef, dict[str, Function]] = {}

    def as_module(self) -> Module:
        """The whole file of which this is a part."""
        raise NotImplementedError

    @once
    def class_of_value(self, value: ast.expr) -> ast.ClassDef | None:
        """The class of this file that an expression is an instance of: `self`, a name or attribute bound to `Class(…)`."""
        if isinstance(value, ast.Attribute):
            return self._class_kept(value)
        if not isinstance(value, ast.Name):
            return self._class_made(value)
        function = self.index.function_of(value)
        if function is not None and function.args.args and value.id == function.args.args[0].arg:
            owner = self.index.parents.get(function)
            if isinstance(owner, ast.ClassDef):
                return owner
        bound = self.names.bindings(value.id, self.index.scope(value))
        if bound is None or len(bound[1]) != 1:
            return None
        binding = bound[1][0]
        if binding.how is Bound.PARAMETER and isinstance(binding.at, ast.arg):
            note = binding.at.annotation
            return self.class_named(note) if isinstance(note, ast.Name) else None
        return self._class_made(binding.value) if binding.how is Bound.VALUE and binding.value is not None else None

    def made_of(self, value: ast.expr) -> ast.Call | None:
        """The call whose result a name holds alone, or an attribute of its class."""
        bound = self.names.bindings(value.id, self.index.scope(value)) if isinstance(value, ast.Name) else None
        made = kept(self.as_module(), value) if isinstance(value, ast.Attribute) else None
        if bound is not None and len(bound[1]) == 1:
            made = bound[1][0].value
        return made if isinstance(made, ast.Call) else None

    def _class_kept(self, value: ast.Attribute) -> ast.ClassDef | None:
        """The class of what `self.name` holds, where one assignment of that class gives it."""
        kept = self.index.attributes.get(("self", value.attr), ())
        owner = self.class_of_value(value.value) if kept else None
        own = [b for b in kept if owner is not None and self.index.class_of(b.at) is owner]
        made = own[0].value if len(own) == 1 and own[0].how is Bound.VALUE else None
        return self.class_of_value(made) if isinstance(made, (ast.Name, ast.Call)) else None

    def _class_made(self, value: ast.expr) -> ast.ClassDef | None:
        return self.class_named(value.func) if isinstance(value, ast.Call) else None

    def class_named(self, node: ast.expr) -> ast.ClassDef | None:
        """The class of this file that a name stands for."""
        if not isinstance(node, ast.Name):
            return None
        bound = self.names.bindings(node.id, self.index.scope(node))
        found = bound[1][-1].at if bound is not None else None
        return found if isinstance(found, ast.ClassDef) else None

    def method(self, owner: ast.ClassDef, name: str, depth: int = 0) -> Target | None:
        """A method of a class or of its bases in the project."""
        own = self._own_methods(owner).get(name)
        if own is not None:
            return Target(self.as_module(), own)
        for base in owner.bases:
            parent = class_at(self.as_module(), base)
            if parent is not None and parent[1] is not owner and depth < 5:
                found = parent[0].method(parent[1], name, depth + 1)
                if found is not None:
                    return found
        return None

    def _own_methods(self, owner: ast.ClassDef) -> dict[str, Function]:
        if owner not in self._methods:
            found = [m for m in owner.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))]
            self._methods[owner] = {m.name: m for m in reversed(found)}
        return self._methods[owner]

    def is_a(self, owner: ast.ClassDef, *names: str, depth: int = 0) -> bool:
        """Whether a class is derived from one with these short names, directly or through classes of this file."""
        for base in owner.bases:
            if self.names.of(base) in names:
                return True
            parent = self.class_named(base)
            if parent is not None and parent is not owner and depth < 5 and self.is_a(parent, *names, depth=depth + 1):
                return True
        return False
