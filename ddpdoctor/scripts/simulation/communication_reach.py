"""Which functions and statements lead to something that the other ranks notice, through the calls of the whole project."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ddpdoctor.scripts.simulation.events import EXITS, calls_in, name_of
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function, inner

__all__ = ["CallReach"]


class CallReach:
    """Which functions and statements of the project can do something of these names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def calls(self, module: Module, node: ast.AST) -> list[ast.Call]:
        """The calls in a statement in their order."""
        return calls_in(module, node)

    def named(self, module: Module, call: ast.Call) -> str | None:
        """The name of a call that is looked for."""
        name = name_of(module, call)
        return name if name in self.names else None

    def function(self, module: Module, function: Function) -> bool:
        """Whether a function, or one that it calls, does something that is looked for."""
        return self._reaches_match("does", Target(module, function), self._calls_of)

    def call(self, module: Module, call: ast.Call) -> bool:
        """Whether a call does something that is looked for."""
        return any(to is None or self.function(to.module, to.function) for to in self._of_call(module, call))

    def runs(self, module: Module, function: Function) -> bool:
        """Whether a function is worth rehearsing: it does something that is looked for, or may end the process."""
        return self.function(module, function) or self._reaches_match("ends", Target(module, function), self._exits_of)

    def acts(self, module: Module, call: ast.Call) -> bool:
        """Whether a call does something that is looked for, may end the process, or runs what a decorator wraps."""
        return (
            self.call(module, call)
            or any(to is None or self.runs(to.module, to.function) for to in self._exits_of_call(module, call))
            or module.parameter_called(call) is not None
        )

    def statement(self, module: Module, statement: ast.AST) -> bool:
        """Whether a statement does something that is looked for, or leaves its block."""
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

    # Where a function leads: a `Target` is a function that runs next, None what is looked for.

    def _reaches_match(
        self, question: str, first: Target[Module], steps: Callable[[Target[Module]], Iterator[Target[Module] | None]]
    ) -> bool:
        """Whether one of the functions that a function leads to comes to None: one way after the other, each once."""
        known = self._known(question, first.module)
        if first.function in known:
            return known[first.function]
        seen = {first.function: first}
        way = [(first, steps(first))]
        while way:
            for to in way[-1][1]:
                told = to is None or self._known(question, to.module).get(to.function)
                if told:
                    for each, _ in way:
                        self._known(question, each.module)[each.function] = True
                    return True
                if to is not None and told is None and to.function not in seen:
                    seen[to.function] = to
                    way.append((to, steps(to)))
                    break
            else:
                way.pop()
        for each in seen.values():
            self._known(question, each.module)[each.function] = False
        return False

    def _calls_of(self, at: Target[Module]) -> Iterator[Target[Module] | None]:
        for statement in at.function.body:
            for call in calls_in(at.module, statement):
                yield from self._of_call(at.module, call)

    def _of_call(self, module: Module, call: ast.Call) -> Iterator[Target[Module] | None]:
        """Where a call leads; through a lambda, where the calls of its body lead."""
        waiting, lambdas = [call], set()
        while waiting:
            each = waiting.pop()
            if self.named(module, each) is not None:
                yield None
            made = module.lambda_of(each)
            if made is None:
                target = module.target(each)
                yield from () if target is None else (target,)
                yield from _context_methods(module, each)
            elif made not in lambdas:
                lambdas.add(made)
                waiting += reversed(calls_in(module, made.body))

    def _exits_of(self, at: Target[Module]) -> Iterator[Target[Module] | None]:
        for statement in at.function.body:
            for call in calls_in(at.module, statement):
                yield from self._exits_of_call(at.module, call)

    def _exits_of_call(self, module: Module, call: ast.Call) -> Iterator[Target[Module] | None]:
        """Where a call leads that may end the process, or that does something that is looked for."""
        if module.names.of(call.func) in EXITS:
            yield None
        target = module.target(call)
        if target is not None:
            yield None if self.function(target.module, target.function) else target


def _context_methods(module: Module, call: ast.Call) -> Iterator[Target[Module]]:
    """What a `with` runs when it enters and leaves an object of a class here."""
    is_context = isinstance(module.index.parents.get(call), ast.withitem)
    owner = module.class_of_value(call) if is_context else None
    for name in ("__enter__", "__exit__") if owner is not None else ():
        special = module.method(owner, name) if owner is not None else None
        yield from () if special is None else (special,)
