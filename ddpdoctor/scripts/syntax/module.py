"""One analyzed file: lookups of names, calls, functions and classes for the rules."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

from ddpdoctor.facts.script import Script, SourceFile, SourceProblem
from ddpdoctor.scripts.syntax import classes, definitions
from ddpdoctor.scripts.syntax.call_index import CallIndex
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.index import Bound, index
from ddpdoctor.scripts.syntax.names import Names
from ddpdoctor.scripts.syntax.node_cache import NodeCache, cached_per_node
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.parsing import MAX_DEPTH, concerns, parse
from ddpdoctor.scripts.syntax.spawning import Spawn, spawn_of

T = TypeVar("T")

__all__ = ["Module", "Spawn", "modules", "too_deep", "unreadable"]


class Module:
    """A file with its syntax tree and indexes, and the project that it can import from. Build it with `modules`."""

    def __init__(self, source: SourceFile, tree: ast.Module, project: dict[str, SourceFile]) -> None:
        self.path = source.path
        self.text = source.text
        self.tree = tree
        self.index = index(tree)
        self.names = Names(self.index)
        self.cache: NodeCache = {}
        self._project = project
        self._others: dict[str, Module | None] = {}

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text with their line ends."""
        return self.text.splitlines(keepends=True)

    # Calls by name.

    @cached_property
    def call_index(self) -> CallIndex:
        """The calls of the file by name."""
        return CallIndex(self.index, self.names)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these short names, in textual order."""
        return self.call_index.calls(*names)

    @property
    def method_calls(self) -> dict[str, list[ast.Call]]:
        """All calls `object.name(…)` by that name."""
        return self.call_index.by_method

    @property
    def options(self) -> dict[str, ast.Call]:
        """The calls of add_argument, by the attribute that the option becomes."""
        return self.call_index.options

    @property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that the file imports."""
        return self.call_index.frameworks

    @property
    def wrapped(self) -> frozenset[str]:
        """The names, such as `model` or `self.model`, that a DDP or FSDP wrapper is assigned to."""
        return self.call_index.wrapped

    @property
    def wraps(self) -> bool:
        """Whether the file wraps a model so that its backward pass communicates."""
        return self.call_index.wraps

    # Classes.

    class_named = classes.class_named
    class_of_value = classes.class_of_value
    is_a = classes.is_a
    made_of = classes.made_of
    method = classes.method

    # The function that a call runs.

    target_of = definitions.target_of

    @cached_per_node
    def target(self, call: ast.Call) -> Target[Module] | None:
        """The function of this project that a call runs: a constructor is the class's __init__."""
        return self.target_of(call.func) or self._target_given_to_spawn(call.func)

    def _target_given_to_spawn(self, func: ast.expr) -> Target[Module] | None:
        """The function that each start of processes passes for a parameter: `args=(rank, size, run)` for `fn`."""
        bound = self.names.bindings(func.id, self.index.scope(func)) if isinstance(func, ast.Name) else None
        if bound is None or len(bound[1]) != 1 or bound[1][0].how is not Bound.PARAMETER:
            return None
        given = [s.given_for(bound[1][0].at) for s in self.spawns if s.function is bound[0].function]
        targets = {self.target_of(node) if node is not None else None for node in given}
        return targets.pop() if len(targets) == 1 else None

    @cached_per_node
    def parameter_called(self, call: ast.Call) -> ast.arg | None:
        """The parameter of an enclosing function that a call runs, as the inner function of a decorator does."""
        if not isinstance(call.func, ast.Name):
            return None
        scope = self.index.scope(call.func)
        bound = self.names.bindings(call.func.id, scope)
        if bound is None or bound[0] is scope or len(bound[1]) != 1 or bound[1][0].how is not Bound.PARAMETER:
            return None
        parameter = bound[1][0].at
        return parameter if isinstance(parameter, ast.arg) else None

    @cached_per_node
    def lambda_of(self, call: ast.Call) -> ast.Lambda | None:
        """The lambda that a call runs by the only name that it is assigned to."""
        if not isinstance(call.func, ast.Name):
            return None
        bound = self.names.bindings(call.func.id, self.index.scope(call.func))
        made = bound[1][0].value if bound is not None and len(bound[1]) == 1 else None
        return made if isinstance(made, ast.Lambda) and bound is not None and bound[1][0].how is Bound.VALUE else None

    @cached_property
    def callers(self) -> dict[Function, list[ast.Call]]:
        """The calls in this file of each of its functions."""
        calls: dict[Function, list[ast.Call]] = {}
        for call in self.index.calls:
            target = self.target(call)
            if target is not None and target.module is self:
                calls.setdefault(target.function, []).append(call)
        return calls

    @cached_property
    def spawns(self) -> tuple[Spawn, ...]:
        """The starts of processes: mp.spawn, start_processes and Process."""
        return tuple(spawn for call in self.index.calls if (spawn := spawn_of(self, call)) is not None)

    # Other modules of the project.

    def beside(self, dotted: str) -> Module | None:
        """The project's module of this dotted name, as this file would import it."""
        if not self._project:
            return None
        if dotted not in self._others:
            self._others[dotted] = None
            self._others[dotted] = self._find_module(dotted)
        return self._others[dotted]

    def _find_module(self, dotted: str) -> Module | None:
        folder = posixpath.dirname(posixpath.normpath(self.path))
        dots = len(dotted) - len(dotted.lstrip("."))
        for _ in range(dots - 1):
            folder = posixpath.dirname(folder)
        path = dotted.lstrip(".").replace(".", "/")
        folders = [folder]
        while not dots and folder not in ("", "/"):
            folder = posixpath.dirname(folder)
            folders.append(folder)
        for parent in folders:
            for suffix in (".py", "/__init__.py"):
                source = self._project.get(posixpath.normpath(posixpath.join(parent, path + suffix)))
                if source is not None and source.path != self.path:
                    return _module(source, _ByIdentity(self._project))
        return None

    @cached_property
    def is_program(self) -> bool:
        """Whether the file is meant to be started: it has a main guard, or does work at module level."""
        return any(_is_main_guard(s) or _does_work(s) for s in self.tree.body)


def _does_work(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.For, ast.While, ast.With)):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def _is_main_guard(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


class _ByIdentity(Generic[T]):
    """A cache key that compares an object by identity: hashing all sources would take longer."""

    def __init__(self, wrapped: T) -> None:
        self.wrapped = wrapped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.wrapped is self.wrapped

    def __hash__(self) -> int:
        return id(self.wrapped)


@lru_cache(maxsize=512)
def _module(source: SourceFile, project: _ByIdentity[dict[str, SourceFile]]) -> Module | None:
    tree = parse(source.text)
    if isinstance(tree, SourceProblem):
        return None
    module = Module(source, tree, project.wrapped)
    return None if module.index.depth > MAX_DEPTH else module


@lru_cache(maxsize=4)
def _project(script: _ByIdentity[Script]) -> _ByIdentity[dict[str, SourceFile]]:
    """The texts by path. Scripts with the same `beside` share it: its modules are analyzed only once."""
    texts = _texts(_ByIdentity(script.wrapped.beside))
    own = _by_path(script.wrapped.files)
    return _ByIdentity(texts if all(texts.get(path) == source for path, source in own.items()) else {**texts, **own})


@lru_cache(maxsize=4)
def _texts(beside: _ByIdentity[tuple[SourceFile, ...]]) -> dict[str, SourceFile]:
    return _by_path(beside.wrapped)


def _by_path(files: tuple[SourceFile, ...]) -> dict[str, SourceFile]:
    return {posixpath.normpath(file.path): file for file in files}


def unreadable(script: Script) -> Iterator[tuple[SourceFile, SourceProblem]]:
    """The checked files that are not Python, with the reason."""
    for source in script.files:
        tree = source.problem or parse(source.text)
        if isinstance(tree, SourceProblem):
            yield source, tree


def too_deep(script: Script) -> Iterator[tuple[SourceFile, int]]:
    """The checked files that `modules` skips because of their nesting, with their depth."""
    project = _project(_ByIdentity(script))
    for source in script.files:
        if source.can_be_judged and concerns(source.text) and _module(source, project) is None:
            tree = parse(source.text)
            if isinstance(tree, ast.Module):
                yield source, index(tree).depth


def modules(script: Script) -> Iterator[Module]:
    """The checked files that can be parsed and concern distributed training, analyzed; cached."""
    project = _project(_ByIdentity(script))
    for source in script.files:
        if source.can_be_judged and concerns(source.text):
            module = _module(source, project)
            if module is not None:
                yield module
