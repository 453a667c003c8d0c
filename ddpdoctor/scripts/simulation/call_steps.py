"""One rank comes to calls: what they do, in their order, the functions that they run, and where it parts from the others."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter.conditions import conditions
from ddpdoctor.scripts.interpreter.parameters import arguments
from ddpdoctor.scripts.interpreter.simulated_job import Frame, Unknown
from ddpdoctor.scripts.interpreter.values import Reader
from ddpdoctor.scripts.simulation.communication_reach import Matters
from ddpdoctor.scripts.simulation.events import EXITS
from ddpdoctor.scripts.simulation.trace import Event, Leaving, Test, Track
from ddpdoctor.scripts.syntax.decorators import wrapper_of
from ddpdoctor.scripts.syntax.module import Module, Target
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["MAX_CALLS", "Calling"]

MAX_CALLS = 8
ONLY_ON_MAIN = ("rank_zero_only", "main_process_only", "on_main_process", "master_only", "only_on_main")


class Calling:
    """What one rank does at calls; `Walk` leads it there through statements."""

    def __init__(self, module: Module, reader: Reader, track: Track, matters: Matters, left: int) -> None:
        self.left = left
        self.module = module
        self.reader = reader
        self.track = track
        self.matters = matters
        self.is_open = False
        self.fails: Callable[[], bool] = bool
        self.tests: list[Test] = []
        self.loops: list[ast.AST] = []
        self.chain: list[ast.Call] = []
        self.running: list[Function] = []
        self.wrapped: dict[ast.arg, tuple[Target, dict[str, object]]] = {}
        self.within: list[tuple[Function, Callable[[], str | None]]] = []

    def block(self, body: list[ast.stmt], frame: Frame) -> str | None:
        """Walk statements; how the block was left early, None when it ended."""
        raise NotImplementedError

    def expression(self, node: ast.AST | None, frame: Frame) -> str | None:
        """The calls of an expression, in their order; how the rank was led away by one, None when it went on."""
        if node is None or not (self.tests or self.matters.statement(frame.module, node)):
            return None
        left = None
        for call in self.matters.calls(frame.module, node):
            depth = len(self.tests)
            if self._comes_to(call, node, frame):
                left = self.call(call, frame) or left
            del self.tests[depth:]
        return left

    def _comes_to(self, call: ast.Call, top: ast.AST, frame: Frame) -> bool:
        """Whether this rank reaches a call through `and`, `or`, `… if … else …` and the `if` of comprehensions."""
        for test, wanted in conditions(frame.module, call, top):
            if not self.matters.acts(frame.module, call):
                return False
            truth = self.reader.truth(test, frame)
            if isinstance(truth, Unknown):
                self.is_open = True
                return False
            self._decided(test, truth, frame.module)
            if truth is not wanted:
                return False
        return True

    def call(self, call: ast.Call, frame: Frame) -> str | None:
        """What one call does: an event, the end of the program, or what stands in the function that it runs."""
        module = frame.module
        if module.names.of(call.func) in EXITS:
            return self._leave("exit", call) if not self._is_failure(call, frame) else self._raise(call)
        name = self.matters.named(module, call)
        if name is not None:
            chain = (*self.chain, call)
            self.track.events.append(Event(name, call, frame, self.reader, chain, tuple(self.tests), tuple(self.loops)))
            return None
        given = module.parameter_called(call)
        if given in self.wrapped:
            what, bound = self.wrapped[given]
            return self._inlined(call, Frame(what.module, what.function, bound), what.function)
        made = module.lambda_of(call)
        if made is not None and len(self.chain) < MAX_CALLS:
            return self._lambda(call, made, frame)
        target = module.target(call)
        if target is None:
            self._unseen(call, frame)
            return None
        function = target.function
        if function in self.running or len(self.chain) >= MAX_CALLS or not self.matters.runs(target.module, function):
            return None
        bound = arguments(self.reader, call, function, frame)
        wrapper = wrapper_of(target.module, function)
        if wrapper is not None and wrapper.inner not in self.running:
            self.wrapped[wrapper.given] = (target, bound)
            return self._inlined(call, Frame(wrapper.module, wrapper.inner), wrapper.inner)
        return self._inlined(call, Frame(target.module, function, bound), function)

    def _lambda(self, call: ast.Call, made: ast.Lambda, frame: Frame) -> str | None:
        bound = {a.arg: self.reader.value(v, frame) for a, v in zip(made.args.args, call.args, strict=False)}
        self.chain.append(call)
        left = self.expression(made.body, Frame(frame.module, frame.module.index.function_of(made), bound))
        self.chain.pop()
        return left if left in ("exit", "raise") else None

    def _inlined(self, call: ast.Call, frame: Frame, function: Function) -> str | None:
        self.chain.append(call)
        self.running.append(function)
        depth = len(self.tests)
        left = self.block(function.body, frame) if self._enters(function) else None
        del self.tests[depth:]
        self.running.pop()
        self.chain.pop()
        return left if left in ("exit", "raise") else None

    def _enters(self, function: Function) -> bool:
        """Whether this rank runs the body: decorators let only rank 0 into some."""
        last = [getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list]
        if not any(name in ONLY_ON_MAIN for name in last):
            return True
        enters = self.reader.place.rank == 0
        self._decided(function, enters, self.module)
        return enters

    def _decided(self, node: ast.AST, taken: bool, module: Module, *, chosen: bool = False) -> None:
        self.track.decisions.setdefault(node, []).append(taken)
        self.tests.append(Test(node, taken, len(self.chain), module, chosen))

    def _unseen(self, call: ast.Call, frame: Frame) -> None:
        """A function whose text is not at hand, inside a condition: it might do what the other ranks do."""
        if self.tests and frame.module.names.of(call.func) is None:
            text = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            self.track.opaque.append((text, tuple(self.tests)))
        elif self.tests:
            dotted = frame.module.names.dotted(call.func) or ""
            self.track.opaque.append((dotted, tuple(self.tests)))

    def _leave(self, how: str, node: ast.AST) -> str:
        self.track.leavings.append(Leaving(how, node, tuple(self.tests), tuple(self.loops), len(self.chain)))
        return how

    def _raise(self, node: ast.AST) -> str:
        self.track.raised = True
        return self._leave("raise", node)

    def _is_failure(self, call: ast.Call, frame: Frame) -> bool:
        if not call.args:
            return False
        return self.reader.value(call.args[0], frame) not in (0, None, False)
