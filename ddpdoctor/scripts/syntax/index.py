"""The index of a syntax tree, built in one walk: what encloses each node, what each scope binds, all calls in textual order."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import field
from enum import Enum
from typing import Any

from ddpdoctor.light_dataclass import dataclass
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
    """One statement (`at`) that binds a name. `value` is the expression, `part` the name's position if it is unpacked.

    For an import, `target` is the dotted name that is imported (relative ones begin with dots).
    """

    how: Bound
    at: ast.AST
    value: ast.expr | None = None
    part: int | None = None
    target: str = ""

    @property
    def line(self) -> int:
        """The line of the statement, 0 if it has none."""
        return getattr(self.at, "lineno", 0)


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class or function, and what it binds.

    `outer_names` are its global and nonlocal names, `enclosing_function` is the function around its body, itself if it is one.
    """

    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer_names: set[str] = field(default_factory=set)
    enclosing_function: Function | None = None

    def __post_init__(self) -> None:
        self.enclosing_function = self.function or (self.parent.enclosing_function if self.parent is not None else None)

    @property
    def function(self) -> Function | None:
        """The function whose scope this is, None for a module or class."""
        return self.node if isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


@dataclass(slots=True, eq=False)
class Index:
    """The result of the walk. `scope_by_node` is the scope around each node; `attributes` holds assignments to `args.gpu` by
    ("args", "gpu"); `stars` are the modules of `from … import *`; `depth` is the deepest nesting."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    scope_by_node: dict[ast.AST, Scope] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    attributes: dict[tuple[str, str], list[Binding]] = field(default_factory=dict)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    depth: int = 0

    def scope(self, node: ast.AST) -> Scope:
        """The scope that a node's names are looked up in; a function's own node belongs to the scope around it."""
        return self.scope_by_node.get(node) or self.scopes[self.tree]

    def enclosing(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Pairs (parent, child) from the node outwards."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent, node
            node, parent = parent, self.parents.get(parent)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node, None at module or class level."""
        scope = self.scope_by_node.get(node)
        return None if scope is None else scope.enclosing_function

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body holds this function or node, through any functions between."""
        scope = self.scope_by_node.get(node)
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
        """The statement at module level around a node."""
        while self.parents.get(node) is not self.tree:
            node = self.parents[node]
        assert isinstance(node, ast.stmt)
        return node


def index(tree: ast.Module) -> Index:
    """Build the index in one walk."""
    result = Index(tree)
    result.scopes[tree] = Scope(tree, None)
    stack: list[tuple[ast.AST, Scope, int]] = [(tree, result.scopes[tree], 0)]
    while stack:
        node, scope, depth = stack.pop()
        if depth > result.depth:
            result.depth = depth
        result.scope_by_node[node] = scope
        visit = _VISITS.get(type(node))
        if visit is not None:
            visit(result, node, scope)
        if node is not tree and isinstance(node, SCOPES):
            scope = result.scopes[node] = Scope(node, scope)
            _parameters(node, scope)
        children = children_of(node)
        children.reverse()
        for child in children:
            result.parents[child] = node
            stack.append((child, scope, depth + 1))
    return result


def _bind(scope: Scope, name: str, binding: Binding) -> None:
    while name in scope.outer_names and scope.parent is not None:
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
    for parameter, default in zip(positional, defaults, strict=True):
        _bind(scope, parameter.arg, Binding(Bound.PARAMETER, parameter, default))
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        _bind(scope, parameter.arg, Binding(Bound.PARAMETER, parameter, default))
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            _bind(scope, extra.arg, Binding(Bound.OTHER, extra))


def _target(result: Index, target: ast.expr, scope: Scope, binding: Binding) -> None:
    if isinstance(target, ast.Name):
        _bind(scope, target.id, binding)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        result.attributes.setdefault((target.value.id, target.attr), []).append(binding)
    elif isinstance(target, (ast.Tuple, ast.List)):
        value = binding.value
        for position, element in enumerate(target.elts):
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
            _target(result, element, scope, part)
    elif isinstance(target, ast.Starred):
        _target(result, target.value, scope, Binding(Bound.OTHER, binding.at))


def _assign(result: Index, node: ast.Assign, scope: Scope) -> None:
    for target in node.targets:
        _target(result, target, scope, Binding(Bound.VALUE, node, node.value))


def _annotated(result: Index, node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None or isinstance(scope.node, ast.ClassDef):
        _target(result, node.target, scope, Binding(Bound.VALUE, node, node.value))


def _named(result: Index, node: ast.NamedExpr, scope: Scope) -> None:
    _target(result, node.target, scope, Binding(Bound.VALUE, node, node.value))


def _augmented(result: Index, node: ast.AugAssign, scope: Scope) -> None:
    _target(result, node.target, scope, Binding(Bound.CHANGED, node, node.value))


def _loop(result: Index, node: ast.For | ast.AsyncFor | ast.comprehension, scope: Scope) -> None:
    at = node if not isinstance(node, ast.comprehension) else node.target
    _target(result, node.target, scope, Binding(Bound.ITEM, at, node.iter))


def _context(result: Index, node: ast.withitem, scope: Scope) -> None:
    if node.optional_vars is not None:
        _target(result, node.optional_vars, scope, Binding(Bound.CONTEXT, node.context_expr, node.context_expr))


def _import(result: Index, node: ast.Import, scope: Scope) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        target = alias.name if alias.asname else alias.name.partition(".")[0]
        _bind(scope, name, Binding(Bound.IMPORT, node, target=target))


def _import_from(result: Index, node: ast.ImportFrom, scope: Scope) -> None:
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            result.stars.append(base)
            continue
        dotted = f"{base}{alias.name}" if base.endswith(".") else f"{base}.{alias.name}"
        _bind(scope, alias.asname or alias.name, Binding(Bound.IMPORT, node, target=dotted))


def _function(result: Index, node: Function, scope: Scope) -> None:
    result.functions.append(node)
    _bind(scope, node.name, Binding(Bound.FUNCTION, node))


def _class(result: Index, node: ast.ClassDef, scope: Scope) -> None:
    result.classes.append(node)
    _bind(scope, node.name, Binding(Bound.CLASS, node))


def _call(result: Index, node: ast.Call, scope: Scope) -> None:
    result.calls.append(node)


def _subscript(result: Index, node: ast.Subscript, scope: Scope) -> None:
    result.subscripts.append(node)


def _handler(result: Index, node: ast.ExceptHandler, scope: Scope) -> None:
    if node.name:
        _bind(scope, node.name, Binding(Bound.OTHER, node))


def _outer_names(result: Index, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
    scope.outer_names.update(node.names)


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
    ast.Global: _outer_names,
    ast.Nonlocal: _outer_names,
}
