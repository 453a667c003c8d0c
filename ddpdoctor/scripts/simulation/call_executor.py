"""Executes the calls of an expression as one rank: their effects in order, and the functions that they run."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.conditions import conditions
from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.interpreter.parameters import bound_arguments
from ddpdoctor.scripts.simulation.events import EXITS
from ddpdoctor.scripts.simulation.rank_state import MAX_CALLS, RankState
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.decorators import wrapper_of
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["CallExecutor"]


class CallExecutor:
    """Executes calls; `execute_block` executes the statements of a function and returns how it was left early."""

    def __init__(
        self, module: Module, state: RankState, execute_block: Callable[[list[ast.stmt], CallFrame], str | None]
    ) -> None:
        self._module = module
        self._state = state
        self._reach = state.reach
        self._execute_block = execute_block
        self._decorated: dict[ast.arg, tuple[Target[Module], dict[str, object]]] = {}

    def expression(self, node: ast.AST | None, frame: CallFrame) -> str | None:
        """Execute the calls of an expression in order; returns how one of them left the block early, None if none did."""
        if node is None or not (self._state.tests or self._reach.statement(frame.module, node)):
            return None
        left = None
        for call in self._reach.calls(frame.module, node):
            depth = len(self._state.tests)
            if self._reaches(call, node, frame):
                left = self.call(call, frame) or left
            del self._state.tests[depth:]
        return left

    def _reaches(self, call: ast.Call, top: ast.AST, frame: CallFrame) -> bool:
        """Whether this rank reaches a call through `and`, `or`, `… if … else …` and the `if` of comprehensions."""
        for test, wanted in conditions(frame.module, call, top):
            if not self._reach.acts(frame.module, call):
                return False
            truth = self._state.evaluator.truth(test, frame)
            if isinstance(truth, Unknown):
                self._state.is_open = True
                return False
            self._state.enter_branch(test, truth, frame.module)
            if truth is not wanted:
                return False
        return True

    def call(self, call: ast.Call, frame: CallFrame) -> str | None:
        """Execute one call: an event, the end of the program, or the function that it runs."""
        module, state = frame.module, self._state
        if module.names.of(call.func) in EXITS:
            return state.record_raise(call) if state.is_failure(call, frame) else state.record_exit("exit", call)
        name = self._reach.named(module, call)
        if name is not None:
            state.record_event(name, call, frame)
            return None
        parameter = module.parameter_called(call)
        if parameter in self._decorated:
            original, bound = self._decorated[parameter]
            return self.function(call, CallFrame(original.module, original.function, bound), original.function)
        made = module.lambda_of(call)
        if made is not None and len(state.chain) < MAX_CALLS:
            return self._lambda(call, made, frame)
        target = module.target(call)
        if target is None:
            state.record_unknown_call(call, frame)
            return None
        return self._project_function(call, target, frame)

    def _project_function(self, call: ast.Call, target: Target[Module], frame: CallFrame) -> str | None:
        """Execute a function of the project, or the wrapper that its decorator replaces it with."""
        function, state = target.function, self._state
        if function in state.running or len(state.chain) >= MAX_CALLS or not self._reach.runs(target.module, function):
            return None
        bound = bound_arguments(call, function, frame)
        wrapper = wrapper_of(target.module, function)
        if wrapper is not None and wrapper.inner not in state.running:
            self._decorated[wrapper.given] = (target, bound)
            return self.function(call, CallFrame(wrapper.module, wrapper.inner), wrapper.inner)
        return self.function(call, CallFrame(target.module, function, bound), function)

    def _lambda(self, call: ast.Call, made: ast.Lambda, frame: CallFrame) -> str | None:
        evaluator = self._state.evaluator
        bound = {a.arg: evaluator.value(v, frame) for a, v in zip(made.args.args, call.args, strict=False)}
        self._state.chain.append(call)
        left = self.expression(made.body, CallFrame(frame.module, frame.module.index.function_of(made), bound))
        self._state.chain.pop()
        return left if left in ("exit", "raise") else None

    def function(self, call: ast.Call, frame: CallFrame, function: Function) -> str | None:
        """Execute the body of a function that a call runs; returns "exit" or "raise" if the process ends there."""
        state = self._state
        state.chain.append(call)
        state.running.append(function)
        depth = len(state.tests)
        left = self._execute_block(function.body, frame) if self.runs_on_this_rank(function) else None
        del state.tests[depth:]
        state.running.pop()
        state.chain.pop()
        return left if left in ("exit", "raise") else None

    def runs_on_this_rank(self, function: Function) -> bool:
        """Whether this rank runs the body: a decorator such as `rank_zero_only` restricts it to rank 0."""
        decorators = [getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list]
        if not any(name in assumptions.MAIN_ONLY_DECORATORS for name in decorators):
            return True
        runs = self._state.evaluator.context.rank == 0
        self._state.enter_branch(function, runs, self._module)
        return runs
