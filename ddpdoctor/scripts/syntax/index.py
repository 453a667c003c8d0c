"""One walk over a syntax tree: what encloses each node, which names each scope binds, and all calls in textual order."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ddpdoctor.scripts.syntax.nodes import SCOPES, Function, children_of

__all__ = ["Binding", "Bound", "Index", "Scope", "index"]


class Bound(Enum):
    """How a name gets its value."""

    VALUE = "assigned"
    PART = "one of several unpacked"
    CHANGED = "augmented"
    ITEM = "the items of a loop"
    CONTEXT = "with … as"
    PARAMETER = "parameter"
    IMPORT = "imported"
    FUNCTION = "def"
    CLASS = "class"
    OTHER = "except … as, del, global"


@dataclass(slots=True, eq=False)
class Binding:
    """One place where a scope binds a name. `value` is the expression, `part` its index when it is unpacked.

    Of an import, `target` is the dotted name that it stands for (relative ones begin with dots).
    """

    how: Bound
    at: ast.AST
    value: ast.expr | None = None
    part: int | None = None
    target: str = ""

    @property
    def line(self) -> int:
        return getattr(self.at, "lineno", 0)


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class or function, and what it binds; `inside` is the function around its body, itself if it is one."""

    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    inside: Function | None = None

    def __post_init__(self) -> None:
        self.inside = self.function or (self.parent.inside if self.parent is not None else None)

    @property
    def function(self) -> Function | None:
        return self.node if isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


@dataclass(slots=True, eq=False)
class Index:
    """What the walk found. `around` is the scope of each node; `attributes` holds assignments to `self.rank`, `args.gpu`, by
    ("args", "gpu")."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    around: dict[ast.AST, Scope] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    attributes: dict[tuple[str, str], list[Binding]] = field(default_factory=dict)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    depth: int = 0

    def scope(self, node: ast.AST) -> Scope:
        """The scope that a node's names are looked up in; a function's own node belongs to the scope around it."""
        return self.around.get(node) or self.scopes[self.tree]

    def enclosing(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Pairs (parent, child) from the node outwards."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent, node
            node, parent = parent, self.parents.get(parent)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node, None at module or class level."""
        scope = self.around.get(node)
        return None if scope is None else scope.inside

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body holds this function or node, through any functions between."""
        scope = self.around.get(node)
        while scope is not None:
            if isinstance(scope.node, ast.ClassDef):
                return scope.node
            scope = scope.parent
        return None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement around a node, or the node itself."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def outermost(self, node: ast.AST) -> ast.stmt:
        """The statement of the module's own level around a node."""
        while self.parents.get(node) is not self.tree:
            node = self.parents[node]
        assert isinstance(node, ast.stmt)
        return node


def index(tree: ast.Module) -> Index:
    """Walk the tree once."""
    found = Index(tree)
    found.scopes[tree] = Scope(tree, None)
    stack: list[tuple[ast.AST, Scope, int]] = [(tree, found.scopes[tree], 0)]
    while stack:
        node, scope, depth = stack.pop()
        if depth > found.depth:
            found.depth = depth
        found.around[node] = scope
        visit = _VISITS.get(type(node))
        if visit is not None:
            visit(found, node, scope)
        if node is not tree and isinstance(node, SCOPES):
            scope = found.scopes[node] = Scope(node, scope)
            _parameters(node, scope)
        children = children_of(node)
        children.reverse()
        for child in children:
            found.parents[child] = node
            stack.append((child, scope, depth + 1))
    return found


def _bind(scope: Scope, name: str, binding: Binding) -> None:
    while name in scope.elsewhere and scope.parent is not None:
        scope = scope.parent  # global, nonlocal: the next scope outwards that has the name, or the module
        while name not in scope.names and scope.parent is not None:
            scope = scope.parent
    scope.names.setdefault(name, []).append(binding)


def _parameters(node: ast.AST, scope: Scope) -> None:
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [*([None] * (len(positional) - len(arguments.defaults))), *arguments.defaults]
    for each, default in zip(positional, defaults, strict=True):
        _bind(scope, each.arg, Binding(Bound.PARAMETER, each, default))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        _bind(scope, each.arg, Binding(Bound.PARAMETER, each, default))
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            _bind(scope, extra.arg, Binding(Bound.OTHER, extra))


def _target(found: Index, target: ast.expr, scope: Scope, binding: Binding) -> None:
    if isinstance(target, ast.Name):
        _bind(scope, target.id, binding)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        found.attributes.setdefault((target.value.id, target.attr), []).append(binding)
    elif isinstance(target, (ast.Tuple, ast.List)):
        value = binding.value
        for position, each in enumerate(target.elts):
            if (
                binding.how is Bound.VALUE
                and isinstance(value, (ast.Tuple, ast.List))
                and len(value.elts) == len(target.elts)
            ):
                part = Binding(Bound.VALUE, binding.at, value.elts[position])
            else:
                is_item = binding.how is Bound.ITEM
                at = binding.part if is_item and binding.part is not None else position
                part = Binding(Bound.ITEM if is_item else Bound.PART, binding.at, value, at)
            _target(found, each, scope, part)
    elif isinstance(target, ast.Starred):
        _target(found, target.value, scope, Binding(Bound.OTHER, binding.at))


def _assign(found: Index, node: ast.Assign, scope: Scope) -> None:
    for target in node.targets:
        _target(found, target, scope, Binding(Bound.VALUE, node, node.value))


def _annotated(found: Index, node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None or isinstance(scope.node, ast.ClassDef):
        _target(found, node.target, scope, Binding(Bound.VALUE, node, node.value))


def _named(found: Index, node: ast.NamedExpr, scope: Scope) -> None:
    _target(found, node.target, scope, Binding(Bound.VALUE, node, node.value))


def _augmented(found: Index, node: ast.AugAssign, scope: Scope) -> None:
    _target(found, node.target, scope, Binding(Bound.CHANGED, node, node.value))


def _loop(found: Index, node: ast.For | ast.AsyncFor | ast.comprehension, scope: Scope) -> None:
    at = node if not isinstance(node, ast.comprehension) else node.target
    _target(found, node.target, scope, Binding(Bound.ITEM, at, node.iter))


def _context(found: Index, node: ast.withitem, scope: Scope) -> None:
    if node.optional_vars is not None:
        _target(found, node.optional_vars, scope, Binding(Bound.CONTEXT, node.context_expr, node.context_expr))


def _import(found: Index, node: ast.Import, scope: Scope) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        target = alias.name if alias.asname else alias.name.partition(".")[0]
        _bind(scope, name, Binding(Bound.IMPORT, node, target=target))


def _import_from(found: Index, node: ast.ImportFrom, scope: Scope) -> None:
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            found.stars.append(base)
            continue
        dotted = f"{base}{alias.name}" if base.endswith(".") else f"{base}.{alias.name}"
        _bind(scope, alias.asname or alias.name, Binding(Bound.IMPORT, node, target=dotted))


def _function(found: Index, node: Function, scope: Scope) -> None:
    found.functions.append(node)
    _bind(scope, node.name, Binding(Bound.FUNCTION, node))


def _class(found: Index, node: ast.ClassDef, scope: Scope) -> None:
    found.classes.append(node)
    _bind(scope, node.name, Binding(Bound.CLASS, node))


def _call(found: Index, node: ast.Call, scope: Scope) -> None:
    found.calls.append(node)


def _subscript(found: Index, node: ast.Subscript, scope: Scope) -> None:
    found.subscripts.append(node)


def _handler(found: Index, node: ast.ExceptHandler, scope: Scope) -> None:
    if node.name:
        _bind(scope, node.name, Binding(Bound.OTHER, node))


def _elsewhere(found: Index, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
    scope.elsewhere.update(node.names)


_VISITS: dict[type, Callable[[Index, Any, Scope], None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.NamedExpr: _named,
    ast.AugAssign: _augmented,
    ast.For: _loop,
    ast.AsyncFor: _loop,
    ast.comprehension: _loop,
    ast.withitem: _context,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.ExceptHandler: _handler,
    ast.Global: _elsewhere,
    ast.Nonlocal: _elsewhere,
}
