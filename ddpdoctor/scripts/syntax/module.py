"""One analysed file: the questions that rules ask about names, calls, functions and classes."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

from ddpdoctor.facts.script import Script, SourceFile, SourceProblem
from ddpdoctor.scripts.syntax.call_index import Calls
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.index import Bound, index
from ddpdoctor.scripts.syntax.instances import instance_of
from ddpdoctor.scripts.syntax.memory import once
from ddpdoctor.scripts.syntax.names import Names
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.parsing import MAX_DEPTH, concerns, parse
from ddpdoctor.scripts.syntax.spawning import Spawn, spawn_of

T = TypeVar("T")

__all__ = ["Module", "Spawn", "Target", "modules", "too_deep", "unreadable"]


class Module(Calls):
    """A file that was read. Build it with `modules`."""

    def __init__(self, source: SourceFile, tree: ast.Module, project: dict[str, SourceFile]) -> None:
        self.path = source.path
        self.text = source.text
        found = index(tree)
        super().__init__(found, Names(found))
        self.tree = tree
        self._project = project
        self._others: dict[str, Module | None] = {}
        self._targets: dict[ast.expr, Target | None] = {}

    def as_module(self) -> Module:
        """Itself."""
        return self

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    # What a call runs.

    @once
    def target(self, call: ast.Call) -> Target | None:
        """The function of this project that a call runs: a constructor is the class's __init__."""
        if call.func not in self._targets:
            self._targets[call.func] = self.target_of(call.func) or self._spawned_with(call.func)
        return self._targets[call.func]

    def target_of(self, func: ast.expr, depth: int = 0) -> Target | None:
        if depth > 4:
            return None
        if isinstance(func, ast.Name):
            return self._by_name(func, depth)
        if isinstance(func, ast.Attribute):
            owner = self.class_of_value(func.value)
            if owner is not None:
                return self.method(owner, func.attr)
            dotted = self.names.dotted(func)
            if dotted is not None:
                return self._imported(dotted, depth)
            there = instance_of(self, func.value)
            return there[0].method(there[1], func.attr) if there is not None else None
        return None

    def _spawned_with(self, func: ast.expr) -> Target | None:
        """The function that each start of processes gives for a parameter: `args=(rank, size, run)` for `fn`."""
        bound = self.names.bindings(func.id, self.index.scope(func)) if isinstance(func, ast.Name) else None
        if bound is None or len(bound[1]) != 1 or bound[1][0].how is not Bound.PARAMETER:
            return None
        given = [s.given_for(bound[1][0].at) for s in self.spawns if s.function is bound[0].function]
        found = {self.target_of(node) if node is not None else None for node in given}
        return found.pop() if len(found) == 1 else None

    def _by_name(self, func: ast.Name, depth: int) -> Target | None:
        bound = self.names.bindings(func.id, self.index.scope(func))
        if bound is None:
            return None
        defined = [b for b in bound[1] if b.how in (Bound.FUNCTION, Bound.CLASS)]
        if defined:
            node = defined[-1].at
            if isinstance(node, ast.ClassDef):
                return self.method(node, "__init__")
            return Target(self, node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
        imported = next((b for b in bound[1] if b.how is Bound.IMPORT), None)
        if imported is not None:
            return self._imported(imported.target, depth)
        value = bound[1][0].value if len(bound[1]) == 1 and bound[1][0].how is Bound.VALUE else None
        if isinstance(value, ast.Name):
            return self.target_of(value, depth + 1)
        there = instance_of(self, value) if isinstance(value, ast.Call) else None
        if there is not None:
            return there[0].method(there[1], "__call__")
        return None

    def _imported(self, dotted: str, depth: int) -> Target | None:
        base, _, name = dotted.rpartition(".")
        other = self.beside(base) if base else None
        if other is None:
            return None
        scope = other.index.scopes[other.tree]
        for binding in scope.names.get(name, ()):
            if isinstance(binding.at, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return Target(other, binding.at)
            if isinstance(binding.at, ast.ClassDef):
                return other.method(binding.at, "__init__")
            if binding.how is Bound.IMPORT and depth < 4:
                return other._imported(binding.target, depth + 1)
        return None

    def beside(self, dotted: str) -> Module | None:
        """The project's module of this dotted name, as this file would import it."""
        if not self._project:
            return None
        if dotted not in self._others:
            self._others[dotted] = None
            found = self._find(dotted)
            self._others[dotted] = found
        return self._others[dotted]

    def _find(self, dotted: str) -> Module | None:
        folder = posixpath.dirname(posixpath.normpath(self.path))
        dots = len(dotted) - len(dotted.lstrip("."))
        for _ in range(dots - 1):
            folder = posixpath.dirname(folder)
        path = dotted.lstrip(".").replace(".", "/")
        folders = [folder]
        while not dots and folder not in ("", "/"):
            folder = posixpath.dirname(folder)
            folders.append(folder)
        for each in folders:
            for end in (".py", "/__init__.py"):
                source = self._project.get(posixpath.normpath(posixpath.join(each, path + end)))
                if source is not None and source.path != self.path:
                    return _module(source, _Same(self._project))
        return None

    @once
    def parameter_called(self, call: ast.Call) -> ast.arg | None:
        """The parameter of an enclosing function that a call calls: so a decorator's inner function runs what it wraps."""
        if not isinstance(call.func, ast.Name):
            return None
        scope = self.index.scope(call.func)
        bound = self.names.bindings(call.func.id, scope)
        if bound is None or bound[0] is scope or len(bound[1]) != 1 or bound[1][0].how is not Bound.PARAMETER:
            return None
        at = bound[1][0].at
        return at if isinstance(at, ast.arg) else None

    @once
    def lambda_of(self, call: ast.Call) -> ast.Lambda | None:
        """The lambda that a call runs by the only name that it is given."""
        if not isinstance(call.func, ast.Name):
            return None
        bound = self.names.bindings(call.func.id, self.index.scope(call.func))
        made = bound[1][0].value if bound is not None and len(bound[1]) == 1 else None
        return made if isinstance(made, ast.Lambda) and bound is not None and bound[1][0].how is Bound.VALUE else None

    # Who calls a function.

    @cached_property
    def callers(self) -> dict[Function, list[ast.Call]]:
        """The calls in this file of each of its functions."""
        found: dict[Function, list[ast.Call]] = {}
        for call in self.index.calls:
            target = self.target(call)
            if target is not None and target.module is self:
                found.setdefault(target.function, []).append(call)
        return found

    @cached_property
    def spawns(self) -> tuple[Spawn, ...]:
        """The starts of processes: mp.spawn, start_processes and Process."""
        return tuple(each for call in self.index.calls if (each := spawn_of(self, call)) is not None)

    @cached_property
    def is_program(self) -> bool:
        """Whether the file is meant to be started: it has a main guard, or does work at module level."""
        return any(_is_main_guard(each) for each in self.tree.body) or any(
            isinstance(each, (ast.For, ast.While, ast.With)) or _is_work(each) for each in self.tree.body
        )


def _is_work(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    return isinstance(statement, ast.Expr) and isinstance(value, ast.Call)


def _is_main_guard(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


class _Same(Generic[T]):
    """As a key of a cache a thing stands for itself: equal ones are others."""

    def __init__(self, it: T) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.it is self.it

    def __hash__(self) -> int:
        return id(self.it)


@lru_cache(maxsize=512)
def _module(source: SourceFile, project: _Same[dict[str, SourceFile]]) -> Module | None:
    tree = parse(source.text)
    if isinstance(tree, SourceProblem):
        return None
    module = Module(source, tree, project.it)
    return None if module.index.depth > MAX_DEPTH else module


@lru_cache(maxsize=4)
def _project(script: _Same[Script]) -> _Same[dict[str, SourceFile]]:
    """The texts by path. Scripts with one `beside` that holds them share it: its modules are analysed once for all."""
    texts = _texts(_Same(script.it.beside))
    own = _by_path(script.it.files)
    return _Same(texts if all(texts.get(path) == source for path, source in own.items()) else {**texts, **own})


@lru_cache(maxsize=4)
def _texts(beside: _Same[tuple[SourceFile, ...]]) -> dict[str, SourceFile]:
    return _by_path(beside.it)


def _by_path(files: tuple[SourceFile, ...]) -> dict[str, SourceFile]:
    return {posixpath.normpath(each.path): each for each in files}


def unreadable(script: Script) -> Iterator[tuple[SourceFile, SourceProblem]]:
    """The judged files that are no Python, with the reason."""
    for source in script.files:
        tree = source.problem or parse(source.text)
        if isinstance(tree, SourceProblem):
            yield source, tree


def too_deep(script: Script) -> Iterator[tuple[SourceFile, int]]:
    """The judged files that `modules` leaves out because of their nesting, with their depth."""
    project = _project(_Same(script))
    for source in script.files:
        if source.can_be_judged and concerns(source.text) and _module(source, project) is None:
            tree = parse(source.text)
            if isinstance(tree, ast.Module):
                yield source, index(tree).depth


def modules(script: Script) -> Iterator[Module]:
    """The judged files that can be read and concern distributed training, analysed; cached."""
    project = _project(_Same(script))
    for source in script.files:
        if source.can_be_judged and concerns(source.text):
            module = _module(source, project)
            if module is not None:
                yield module
