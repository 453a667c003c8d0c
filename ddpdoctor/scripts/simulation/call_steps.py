"""One rank comes to calls: what they do, in their order, the functions that they run, and where it parts from the others."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter.conditions import conditions
from ddpdoctor.scripts.interpreter.parameters import bound_arguments
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, Unknown
from ddpdoctor.scripts.interpreter.values import RankEvaluator
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.simulation.events import EXITS
from ddpdoctor.scripts.simulation.trace import BranchTest, EarlyExit, Event, RankTrace
from ddpdoctor.scripts.syntax.classes import Target
from ddpdoctor.scripts.syntax.decorators import wrapper_of
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["MAX_CALLS", "CallExecutor"]

MAX_CALLS = 8
ONLY_ON_MAIN = ("rank_zero_only", "main_process_only", "on_main_process", "master_only", "only_on_main")


class CallExecutor:
    """What one rank does at calls; `Walk` leads it there through statements."""

    def __init__(self, module: Module, evaluator: RankEvaluator, trace: RankTrace, reach: CallReach, left: int) -> None:
        self.left = left
        self.module = module
        self.evaluator = evaluator
        self.trace = trace
        self.reach = reach
        self.is_open = False
        self.fails: Callable[[], bool] = bool
        self.tests: list[BranchTest] = []
        self.loops: list[ast.AST] = []
        self.chain: list[ast.Call] = []
        self.running: list[Function] = []
        self.wrapped: dict[ast.arg, tuple[Target[Module], dict[str, object]]] = {}
        self.within: list[tuple[Function, Callable[[], str | None]]] = []

    def block(self, body: list[ast.stmt], frame: CallFrame) -> str | None:
        """Walk statements; how the block was left early, None when it ended."""
        raise NotImplementedError

    def expression(self, node: ast.AST | None, frame: CallFrame) -> str | None:
        """The calls of an expression, in their order; how the rank was led away by one, None when it went on."""
        if node is None or not (self.tests or self.reach.statement(frame.module, node)):
            return None
        left = None
        for call in self.reach.calls(frame.module, node):
            depth = len(self.tests)
            if self._reaches(call, node, frame):
                left = self.call(call, frame) or left
            del self.tests[depth:]
        return left

    def _reaches(self, call: ast.Call, top: ast.AST, frame: CallFrame) -> bool:
        """Whether this rank reaches a call through `and`, `or`, `… if … else …` and the `if` of comprehensions."""
        for test, wanted in conditions(frame.module, call, top):
            if not self.reach.acts(frame.module, call):
                return False
            truth = self.evaluator.truth(test, frame)
            if isinstance(truth, Unknown):
                self.is_open = True
                return False
            self._record_decision(test, truth, frame.module)
            if truth is not wanted:
                return False
        return True

    def call(self, call: ast.Call, frame: CallFrame) -> str | None:
        """What one call does: an event, the end of the program, or what stands in the function that it runs."""
        module = frame.module
        if module.names.of(call.func) in EXITS:
            return self._record_exit("exit", call) if not self._is_failure(call, frame) else self._record_raise(call)
        name = self.reach.named(module, call)
        if name is not None:
            chain = (*self.chain, call)
            self.trace.events.append(
                Event(name, call, frame, self.evaluator, chain, tuple(self.tests), tuple(self.loops))
            )
            return None
        given = module.parameter_called(call)
        if given in self.wrapped:
            what, bound = self.wrapped[given]
            return self._execute_function(call, CallFrame(what.module, what.function, bound), what.function)
        made = module.lambda_of(call)
        if made is not None and len(self.chain) < MAX_CALLS:
            return self._lambda(call, made, frame)
        target = module.target(call)
        if target is None:
            self._record_unknown_call(call, frame)
            return None
        function = target.function
        if function in self.running or len(self.chain) >= MAX_CALLS or not self.reach.runs(target.module, function):
            return None
        bound = bound_arguments(self.evaluator, call, function, frame)
        wrapper = wrapper_of(target.module, function)
        if wrapper is not None and wrapper.inner not in self.running:
            self.wrapped[wrapper.given] = (target, bound)
            return self._execute_function(call, CallFrame(wrapper.module, wrapper.inner), wrapper.inner)
        return self._execute_function(call, CallFrame(target.module, function, bound), function)

    def _lambda(self, call: ast.Call, made: ast.Lambda, frame: CallFrame) -> str | None:
        bound = {a.arg: self.evaluator.value(v, frame) for a, v in zip(made.args.args, call.args, strict=False)}
        self.chain.append(call)
        left = self.expression(made.body, CallFrame(frame.module, frame.module.index.function_of(made), bound))
        self.chain.pop()
        return left if left in ("exit", "raise") else None

    def _execute_function(self, call: ast.Call, frame: CallFrame, function: Function) -> str | None:
        self.chain.append(call)
        self.running.append(function)
        depth = len(self.tests)
        left = self.block(function.body, frame) if self._runs_on_this_rank(function) else None
        del self.tests[depth:]
        self.running.pop()
        self.chain.pop()
        return left if left in ("exit", "raise") else None

    def _runs_on_this_rank(self, function: Function) -> bool:
        """Whether this rank runs the body: decorators let only rank 0 into some."""
        last = [getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list]
        if not any(name in ONLY_ON_MAIN for name in last):
            return True
        enters = self.evaluator.context.rank == 0
        self._record_decision(function, enters, self.module)
        return enters

    def _record_decision(self, node: ast.AST, taken: bool, module: Module, *, chosen: bool = False) -> None:
        self.trace.decisions.setdefault(node, []).append(taken)
        self.tests.append(BranchTest(node, taken, len(self.chain), module, chosen))

    def _record_unknown_call(self, call: ast.Call, frame: CallFrame) -> None:
        """A function whose text is not at hand, inside a condition: it might do what the other ranks do."""
        if self.tests and frame.module.names.of(call.func) is None:
            text = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            self.trace.opaque.append((text, tuple(self.tests)))
        elif self.tests:
            dotted = frame.module.names.dotted(call.func) or ""
            self.trace.opaque.append((dotted, tuple(self.tests)))

    def _record_exit(self, how: str, node: ast.AST) -> str:
        self.trace.early_exits.append(EarlyExit(how, node, tuple(self.tests), tuple(self.loops), len(self.chain)))
        return how

    def _record_raise(self, node: ast.AST) -> str:
        self.trace.raised = True
        return self._record_exit("raise", node)

    def _is_failure(self, call: ast.Call, frame: CallFrame) -> bool:
        if not call.args:
            return False
        return self.evaluator.value(call.args[0], frame) not in (0, None, False)
