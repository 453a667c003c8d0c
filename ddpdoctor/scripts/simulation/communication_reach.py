"""Call-graph reachability: which functions and statements lead to communication, through the calls of the whole project."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ddpdoctor.scripts.simulation.events import EXITS, calls_in, name_of
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function, inner

__all__ = ["CallReach"]

_Steps: TypeAlias = "Iterator[Target[Module] | None]"
"""Where a function leads: a `Target` is a function that runs next, None is a call that is searched for."""


class CallReach:
    """Which functions and statements of the project reach a call with one of these names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def calls(self, module: Module, node: ast.AST) -> list[ast.Call]:
        """The calls in a statement, in order."""
        return calls_in(module, node)

    def named(self, module: Module, call: ast.Call) -> str | None:
        """The name of a call, None if it is not searched for."""
        name = name_of(module, call)
        return name if name in self.names else None

    def function(self, module: Module, function: Function) -> bool:
        """Whether a function, or one that it calls, makes a call that is searched for."""
        return self._reaches_match("function", Target(module, function), self._steps_of_function)

    def call(self, module: Module, call: ast.Call) -> bool:
        """Whether a call is searched for, or leads to one that is."""
        return any(to is None or self.function(to.module, to.function) for to in self._steps_of_call(module, call))

    def runs(self, module: Module, function: Function) -> bool:
        """Whether a function has to be simulated: it reaches a call that is searched for, or may end the process."""
        first = Target(module, function)
        return self.function(module, function) or self._reaches_match("exits", first, self._exits_of_function)

    def acts(self, module: Module, call: ast.Call) -> bool:
        """Whether a call reaches one that is searched for, may end the process, or runs a decorated function."""
        return (
            self.call(module, call)
            or any(to is None or self.runs(to.module, to.function) for to in self._exits_of_call(module, call))
            or module.parameter_called(call) is not None
        )

    def statement(self, module: Module, statement: ast.AST) -> bool:
        """Whether a statement contains a call that acts, or leaves its block."""
        known = self._known("statement", module)
        if statement not in known:
            known[statement] = any(
                isinstance(n, (ast.Return, ast.Break, ast.Continue, ast.Raise))
                or (isinstance(n, ast.Call) and self.acts(module, n))
                for n in inner(statement)
            )
        return known[statement]

    def _known(self, question: str, module: Module) -> dict[ast.AST, bool]:
        answers: dict[ast.AST, bool] = module.cache.setdefault((question, self.names), {})
        return answers

    def _reaches_match(self, question: str, first: Target[Module], steps: Callable[[Target[Module]], _Steps]) -> bool:
        """Whether a function leads to None, in a depth-first search that visits each function once."""
        known = self._known(question, first.module)
        if first.function in known:
            return known[first.function]
        visited = {first.function: first}
        path = [(first, steps(first))]
        while path:
            for to in path[-1][1]:
                reaches = to is None or self._known(question, to.module).get(to.function)
                if reaches:
                    for target, _ in path:
                        self._known(question, target.module)[target.function] = True
                    return True
                if to is not None and reaches is None and to.function not in visited:
                    visited[to.function] = to
                    path.append((to, steps(to)))
                    break
            else:
                path.pop()
        for target in visited.values():
            self._known(question, target.module)[target.function] = False
        return False

    def _steps_of_function(self, target: Target[Module]) -> _Steps:
        for statement in target.function.body:
            for call in calls_in(target.module, statement):
                yield from self._steps_of_call(target.module, call)

    def _steps_of_call(self, module: Module, call: ast.Call) -> _Steps:
        """Where a call leads; for a lambda, where the calls of its body lead."""
        waiting, lambdas = [call], set()
        while waiting:
            inner_call = waiting.pop()
            if self.named(module, inner_call) is not None:
                yield None
            made = module.lambda_of(inner_call)
            if made is None:
                target = module.target(inner_call)
                yield from () if target is None else (target,)
                yield from _context_methods(module, inner_call)
            elif made not in lambdas:
                lambdas.add(made)
                waiting += reversed(calls_in(module, made.body))

    def _exits_of_function(self, target: Target[Module]) -> _Steps:
        for statement in target.function.body:
            for call in calls_in(target.module, statement):
                yield from self._exits_of_call(target.module, call)

    def _exits_of_call(self, module: Module, call: ast.Call) -> _Steps:
        """Where a call leads if it may end the process or reaches a call that is searched for."""
        if module.names.of(call.func) in EXITS:
            yield None
        target = module.target(call)
        if target is not None:
            yield None if self.function(target.module, target.function) else target


def _context_methods(module: Module, call: ast.Call) -> Iterator[Target[Module]]:
    """The methods that a `with` calls when it enters and leaves an object of a class of this file."""
    is_context = isinstance(module.index.parents.get(call), ast.withitem)
    owner = module.class_of_value(call) if is_context else None
    for name in ("__enter__", "__exit__") if owner is not None else ():
        method = module.method(owner, name) if owner is not None else None
        yield from () if method is None else (method,)
