"""Executes statements as one rank: branches, loops, contexts and exceptions, and how blocks are left early."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.conditions import matches_case
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.interpreter.loops import iterations_differ
from ddpdoctor.scripts.simulation.call_executor import CallExecutor
from ddpdoctor.scripts.simulation.failures import single_rank_handler
from ddpdoctor.scripts.simulation.rank_state import MAX_CALLS, RankState
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.decorators import is_context
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["RankExecutor"]

MAX_EVENTS = 400
"""Most events of one rank; a simulation with more is abandoned."""
MAX_ITERATIONS = 8
"""Longest list whose loop is executed once per item."""


class RankExecutor:
    """Executes the statements of a root as one rank.

    The methods for statements return how the block was left early ("return", "break", "continue", "exit" or "raise"), None if
    it was not. `fails` says whether only this rank gets an exception in a `try`.
    """

    def __init__(self, module: Module, state: RankState, fails: Callable[[], bool]) -> None:
        self._module = module
        self._state = state
        self._fails = fails
        self._calls = CallExecutor(module, state, self.block)
        self._yields: list[tuple[Function, Callable[[], str | None]]] = []
        """The generators that run as a context, with the body of their `with`."""

    def root(self, root: Function | ast.Module) -> None:
        """Execute a function, or the module level as a program."""
        if isinstance(root, ast.Module):
            self.block(root.body, CallFrame(self._module))
            return
        self._state.running.append(root)
        frame = CallFrame(self._module, root, self._spawn_arguments(root))
        if self._calls.runs_on_this_rank(root):
            self.block(root.body, frame)

    def _spawn_arguments(self, function: Function) -> dict[str, object]:
        """The index of the process as the first argument of a function that is spawned."""
        for spawn in self._module.spawns:
            if spawn.function is function and spawn.indexed and function.args.args:
                return {function.args.args[0].arg: assumptions.process_index(self._state.evaluator.context)}
        return {}

    def block(self, body: list[ast.stmt], frame: CallFrame) -> str | None:
        """Execute statements in order until one leaves the block."""
        state = self._state
        for statement in body:
            state.statements_left -= 1
            if len(state.trace.events) > MAX_EVENTS or state.statements_left < 0:
                state.is_open = True
                return "return"
            execute = _EXECUTE.get(type(statement), RankExecutor._simple_statement)
            left = execute(self, statement, frame)
            if left is not None:
                return left
        return None

    def _simple_statement(self, statement: ast.stmt, frame: CallFrame) -> str | None:
        is_yield = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield)
        running = self._state.running
        if is_yield and self._yields and running and running[-1] is self._yields[-1][0]:
            _, body = generator = self._yields.pop()
            left = body()
            self._yields.append(generator)
            return left if left in ("exit", "raise") else None
        return self._calls.expression(statement, frame)

    # Branches and loops.

    def _if(self, statement: ast.If, frame: CallFrame) -> str | None:
        left = self._calls.expression(statement.test, frame)
        if left is not None or not self._is_relevant(statement, frame):
            return left
        truth = self._state.evaluator.truth(statement.test, frame)
        if isinstance(truth, Unknown):
            self._state.is_open = True
            return None
        chosen = isinstance(self._state.evaluator.value(statement.test, frame), Unknown)
        self._state.enter_branch(statement, truth, frame.module, chosen=chosen)
        left = self.block(statement.body if truth else statement.orelse, frame)
        self._state.tests.pop()
        return left

    def _is_relevant(self, statement: ast.stmt, frame: CallFrame) -> bool:
        return self._state.reach.statement(frame.module, statement)

    def _for(self, statement: ast.For | ast.AsyncFor, frame: CallFrame) -> str | None:
        self._calls.expression(statement.iter, frame)
        if not self._is_relevant(statement, frame):
            return None
        items = self._state.evaluator.value(statement.iter, frame)
        name = statement.target.id if isinstance(statement.target, ast.Name) else ""
        frames = [frame]
        if isinstance(items, list) and 0 < len(items) <= MAX_ITERATIONS and name and iterations_differ(statement, name):
            frames = [CallFrame(frame.module, frame.function, {**frame.bound, name: item}) for item in items]
        return self._iterations(statement, frames)

    def _while(self, statement: ast.While, frame: CallFrame) -> str | None:
        self._calls.expression(statement.test, frame)
        if not self._is_relevant(statement, frame):
            return None
        state = self._state
        is_own = state.evaluator.value(statement.test, frame) is Unknown.DATA
        if not is_own or assumptions.ends_with_input(statement.test):
            return self._iterations(statement, [frame])
        truth = state.evaluator.truth(statement.test, frame)
        if isinstance(truth, Unknown):
            state.is_open = True
            return None
        state.enter_branch(statement, truth, frame.module, chosen=True)
        left = self._iterations(statement, [frame]) if truth else None
        state.tests.pop()
        return left

    def _iterations(self, statement: ast.For | ast.AsyncFor | ast.While, frames: list[CallFrame]) -> str | None:
        """Execute the body of a loop once in each frame."""
        for frame in frames:
            self._state.loops.append(statement)
            left = self.block(statement.body, frame)
            self._state.loops.pop()
            if left not in (None, "continue"):
                return left if left != "break" else None
        return None

    def _match(self, statement: ast.Match, frame: CallFrame) -> str | None:
        left = self._calls.expression(statement.subject, frame)
        if left is not None or not self._is_relevant(statement, frame):
            return left
        state = self._state
        value = state.evaluator.value(statement.subject, frame)
        depth = len(state.tests)
        for case in statement.cases:
            matches = matches_case(state.evaluator, case, value, frame)
            if isinstance(matches, Unknown):
                state.is_open = True
                break
            state.enter_branch(case.pattern, matches, frame.module)
            if matches:
                left = self.block(case.body, frame)
                break
            state.tests.pop()
        del state.tests[depth:]
        return left

    # Contexts.

    def _with(self, statement: ast.With | ast.AsyncWith, frame: CallFrame, first: int = 0) -> str | None:
        """Execute the body between the two parts of its contexts: before and after a `yield`, or `__enter__` and `__exit__`."""
        entered: list[ast.expr] = []
        for number, item in enumerate(statement.items[first:], first + 1):
            call = item.context_expr
            target = frame.module.target(call) if isinstance(call, ast.Call) else None
            if isinstance(call, ast.Call) and target is not None and self._is_relevant_context(target):
                body = partial(self._with, statement, frame, number)
                left = self._generator_context(call, target, body, frame)
                break
            self._calls.expression(call, frame)
            self._special_method(call, "__enter__", frame)
            entered.append(call)
        else:
            left = self.block(statement.body, frame)
        for call in reversed(entered):
            self._special_method(call, "__exit__", frame)
        return left

    def _generator_context(
        self, call: ast.Call, target: Target[Module], body: Callable[[], str | None], frame: CallFrame
    ) -> str | None:
        """Execute the statements of a generator around the body of its `with`."""
        lefts: list[str | None] = []

        def execute_body() -> str | None:
            lefts.append(body())
            return lefts[-1]

        self._yields.append((target.function, execute_body))
        left = self._calls.call(call, frame)
        self._yields.pop()
        return next((how for how in lefts if how is not None), left)

    def _is_relevant_context(self, target: Target[Module]) -> bool:
        """Whether a `with` runs a generator of the project that makes a call that is searched for."""
        state = self._state
        runs = is_context(target.function) and state.reach.runs(target.module, target.function)
        return runs and target.function not in state.running and len(state.chain) < MAX_CALLS

    def _special_method(self, call: ast.expr, name: str, frame: CallFrame) -> None:
        """Execute what an object does when a `with` enters or leaves it."""
        owner = frame.module.class_of_value(call) if isinstance(call, ast.Call) else None
        method = frame.module.method(owner, name) if owner is not None else None
        if isinstance(call, ast.Call) and method is not None and self._state.reach.runs(method.module, method.function):
            self._calls.function(call, CallFrame(method.module, method.function), method.function)

    # Exceptions and early exits.

    def _try(self, statement: ast.Try, frame: CallFrame) -> str | None:
        evaluator = self._state.evaluator
        differs = partial(evaluator.differs_by_rank, frame=frame)
        handler = single_rank_handler(self._state.reach, frame.module, statement, differs)
        failed = handler is not None and self._fails()
        if handler is not None:
            self._state.enter_branch(handler, failed, frame.module)
        if handler is not None and failed:
            left = self.block(handler.body, frame)
        else:
            left = self.block(statement.body, frame) or self.block(statement.orelse, frame)
        if handler is not None:
            self._state.tests.pop()
        return self.block(statement.finalbody, frame) or left

    def _leave_block(self, statement: ast.Return | ast.Break | ast.Continue, frame: CallFrame) -> str | None:
        left = self._calls.expression(getattr(statement, "value", None), frame)
        return left or self._state.record_exit(type(statement).__name__.lower(), statement)

    def _raise(self, statement: ast.Raise, frame: CallFrame) -> str | None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        if raised is not None and frame.module.names.of(raised) == "SystemExit":
            is_failure = isinstance(statement.exc, ast.Call) and self._state.is_failure(statement.exc, frame)
            if not is_failure:
                return self._state.record_exit("exit", statement)
        return self._state.record_raise(statement)

    # Definitions.

    def _class(self, statement: ast.ClassDef, frame: CallFrame) -> str | None:
        """Execute the statements of a class besides its methods: they run when the class is created."""
        return self.block([s for s in statement.body if isinstance(s, (ast.Assign, ast.AnnAssign, ast.Expr))], frame)

    def _function(self, statement: ast.stmt, frame: CallFrame) -> str | None:
        """Do nothing: a function runs when it is called."""
        return None


_EXECUTE: dict[type, Callable[[RankExecutor, Any, CallFrame], str | None]] = {
    ast.If: RankExecutor._if,
    ast.For: RankExecutor._for,
    ast.AsyncFor: RankExecutor._for,
    ast.While: RankExecutor._while,
    ast.With: RankExecutor._with,
    ast.AsyncWith: RankExecutor._with,
    ast.Try: RankExecutor._try,
    ast.Return: RankExecutor._leave_block,
    ast.Break: RankExecutor._leave_block,
    ast.Continue: RankExecutor._leave_block,
    ast.Raise: RankExecutor._raise,
    ast.FunctionDef: RankExecutor._function,
    ast.AsyncFunctionDef: RankExecutor._function,
    ast.ClassDef: RankExecutor._class,
    ast.Match: RankExecutor._match,
}
