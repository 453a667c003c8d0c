"""One rank walks through statements: branches, loops, contexts and failures, and how it leaves them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from ddpdoctor.scripts.interpreter.conditions import matches_case
from ddpdoctor.scripts.interpreter.loops import iterations_differ
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, Unknown
from ddpdoctor.scripts.simulation.call_steps import MAX_CALLS, CallExecutor
from ddpdoctor.scripts.simulation.failures import single_rank_handler
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.decorators import is_context
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["RankExecutor"]

MAX_EVENTS = 400


class RankExecutor(CallExecutor):
    """One rank walks through statements."""

    def given(self, function: Function | None) -> dict[str, object]:
        """What the parameters of a root hold: only a process's index is known better here than by reading."""
        if function is None:
            return {}
        for spawn in self.module.spawns:
            if spawn.function is function and spawn.indexed and function.args.args:
                return {function.args.args[0].arg: self.evaluator.context.local_rank}
        return {}

    def root(self, node: Function | ast.Module, frame: CallFrame) -> None:
        if not isinstance(node, ast.Module):
            self.running.append(node)
            if not self._runs_on_this_rank(node):
                return
        self.block(node.body, frame)

    def block(self, body: list[ast.stmt], frame: CallFrame) -> str | None:
        """Walk statements; how the block was left early, None when it ended."""
        for statement in body:
            self.left -= 1
            if len(self.trace.events) > MAX_EVENTS or self.left < 0:
                self.is_open = True
                return "return"
            work = _EXECUTORS.get(type(statement), RankExecutor.plain)
            left = work(self, statement, frame)
            if left is not None:
                return left
        return None

    def plain(self, statement: ast.stmt, frame: CallFrame) -> str | None:
        yields = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield)
        if yields and self.within and self.running and self.running[-1] is self.within[-1][0]:
            _, body = entered = self.within.pop()
            left = body()
            self.within.append(entered)
            return left if left in ("exit", "raise") else None
        return self.expression(statement, frame)

    def branch(self, statement: ast.If, frame: CallFrame) -> str | None:
        left = self.expression(statement.test, frame)
        if left is not None or not self.reach.statement(frame.module, statement):
            return left
        truth = self.evaluator.truth(statement.test, frame)
        if isinstance(truth, Unknown):
            self.is_open = True
            return None
        chosen = isinstance(self.evaluator.value(statement.test, frame), Unknown)
        self._record_decision(statement, truth, frame.module, chosen=chosen)
        left = self.block(statement.body if truth else statement.orelse, frame)
        self.tests.pop()
        return left

    def loop(self, statement: ast.For | ast.AsyncFor, frame: CallFrame) -> str | None:
        self.expression(statement.iter, frame)
        if not self.reach.statement(frame.module, statement):
            return None
        items = self.evaluator.value(statement.iter, frame)
        name = statement.target.id if isinstance(statement.target, ast.Name) else ""
        if isinstance(items, list) and 0 < len(items) <= 8 and name and iterations_differ(statement, name):
            for item in items:
                left = self._turn(statement, CallFrame(frame.module, frame.function, {**frame.bound, name: item}))
                if left is not None:
                    return left if left != "break" else None
            return None
        left = self._turn(statement, frame)
        return left if left != "break" else None

    def until(self, statement: ast.While, frame: CallFrame) -> str | None:
        self.expression(statement.test, frame)
        if not self.reach.statement(frame.module, statement):
            return None
        left = self._turn(statement, frame)
        return left if left != "break" else None

    def _turn(self, statement: ast.For | ast.AsyncFor | ast.While, frame: CallFrame) -> str | None:
        self.loops.append(statement)
        left = self.block(statement.body, frame)
        self.loops.pop()
        return None if left == "continue" else left

    def with_block(self, statement: ast.With | ast.AsyncWith, frame: CallFrame, at: int = 0) -> str | None:
        """The body between what its contexts do: up to a `yield` and after it, or `__enter__` and `__exit__`."""
        entered: list[ast.expr] = []
        for number, item in enumerate(statement.items[at:], at + 1):
            call = item.context_expr
            made = frame.module.target(call) if isinstance(call, ast.Call) else None
            if isinstance(call, ast.Call) and made is not None and self._is_context(made):
                left = self._yielding(call, made, partial(self.with_block, statement, frame, number), frame)
                break
            self.expression(call, frame)
            self._special(call, "__enter__", frame)
            entered.append(call)
        else:
            left = self.block(statement.body, frame)
        for call in reversed(entered):
            self._special(call, "__exit__", frame)
        return left

    def _yielding(
        self, call: ast.Call, made: Target[Module], rest: Callable[[], str | None], frame: CallFrame
    ) -> str | None:
        """A generator's text around what its `with` holds."""
        lefts: list[str | None] = []

        def body() -> str | None:
            lefts.append(rest())
            return lefts[-1]

        self.within.append((made.function, body))
        left = self.call(call, frame)
        self.within.pop()
        return next((each for each in lefts if each is not None), left)

    def _is_context(self, made: Target[Module]) -> bool:
        """Whether a `with` runs a generator of the project that does something of what is looked for."""
        runs = is_context(made.function) and self.reach.runs(made.module, made.function)
        return runs and made.function not in self.running and len(self.chain) < MAX_CALLS

    def _special(self, call: ast.expr, name: str, frame: CallFrame) -> None:
        """What an object does when a `with` enters or leaves it."""
        owner = frame.module.class_of_value(call) if isinstance(call, ast.Call) else None
        found = frame.module.method(owner, name) if owner is not None else None
        if isinstance(call, ast.Call) and found is not None and self.reach.runs(found.module, found.function):
            self._execute_function(call, CallFrame(found.module, found.function), found.function)

    def attempt(self, statement: ast.Try, frame: CallFrame) -> str | None:
        handler = single_rank_handler(self.reach, frame.module, statement)
        failed = handler is not None and self.fails()
        if handler is not None:
            self._record_decision(handler, failed, frame.module)
        if handler is not None and failed:
            left = self.block(handler.body, frame)
        else:
            left = self.block(statement.body, frame) or self.block(statement.orelse, frame)
        if handler is not None:
            self.tests.pop()
        return self.block(statement.finalbody, frame) or left

    def leave(self, statement: ast.Return | ast.Break | ast.Continue, frame: CallFrame) -> str | None:
        left = self.expression(getattr(statement, "value", None), frame)
        return left or self._record_exit(type(statement).__name__.lower(), statement)

    def raises(self, statement: ast.Raise, frame: CallFrame) -> str | None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        if raised is not None and frame.module.names.of(raised) == "SystemExit":
            failed = isinstance(statement.exc, ast.Call) and self._is_failure(statement.exc, frame)
            return self._record_raise(statement) if failed else self._record_exit("exit", statement)
        return self._record_raise(statement)

    def definition(self, statement: ast.ClassDef, frame: CallFrame) -> str | None:
        """What stands in a class beside its methods runs when the class is made."""
        return self.block([s for s in statement.body if isinstance(s, (ast.Assign, ast.AnnAssign, ast.Expr))], frame)

    def skip(self, statement: ast.stmt, frame: CallFrame) -> str | None:
        return None

    def match(self, statement: ast.Match, frame: CallFrame) -> str | None:
        left = self.expression(statement.subject, frame)
        if left is not None or not self.reach.statement(frame.module, statement):
            return left
        value = self.evaluator.value(statement.subject, frame)
        depth = len(self.tests)
        for case in statement.cases:
            fits = matches_case(self.evaluator, case, value, frame)
            if isinstance(fits, Unknown):
                self.is_open = True
                break
            self._record_decision(case.pattern, fits, frame.module)
            if fits:
                left = self.block(case.body, frame)
                break
            self.tests.pop()
        del self.tests[depth:]
        return left


_EXECUTORS: dict[type, Callable[[RankExecutor, Any, CallFrame], str | None]] = {
    ast.If: RankExecutor.branch,
    ast.For: RankExecutor.loop,
    ast.AsyncFor: RankExecutor.loop,
    ast.While: RankExecutor.until,
    ast.With: RankExecutor.with_block,
    ast.AsyncWith: RankExecutor.with_block,
    ast.Try: RankExecutor.attempt,
    ast.Return: RankExecutor.leave,
    ast.Break: RankExecutor.leave,
    ast.Continue: RankExecutor.leave,
    ast.Raise: RankExecutor.raises,
    ast.FunctionDef: RankExecutor.skip,
    ast.AsyncFunctionDef: RankExecutor.skip,
    ast.ClassDef: RankExecutor.definition,
    ast.Match: RankExecutor.match,
}
