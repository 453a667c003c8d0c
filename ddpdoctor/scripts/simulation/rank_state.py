"""Where one rank of a simulation is: the conditions, loops and calls around it, and what it has done so far."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.interpreter.frames import CallFrame
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.simulation.trace import BranchTest, EarlyExit, Event, RankTrace
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["MAX_CALLS", "RankState"]

MAX_CALLS = 8
"""Deepest nesting of calls that a simulation follows."""


class RankState:
    """The position of one rank in the script, and its trace.

    `is_open`: the rank reached a condition that may differ between ranks in an unknown way, or a limit. `tests`, `loops` and
    `chain` are the conditions, loops and calls around the current statement, `running` the functions of these calls.
    """

    def __init__(self, evaluator: RankEvaluator, trace: RankTrace, reach: CallReach, statements_left: int) -> None:
        self.evaluator = evaluator
        self.trace = trace
        self.reach = reach
        self.statements_left = statements_left
        self.is_open = False
        self.tests: list[BranchTest] = []
        self.loops: list[ast.AST] = []
        self.chain: list[ast.Call] = []
        self.running: list[Function] = []

    def enter_branch(self, node: ast.AST, taken: bool, module: Module, *, chosen: bool = False) -> None:
        """Record which branch of a condition was taken; what follows is under this condition until it is removed from `tests`."""
        self.trace.decisions.setdefault(node, []).append(taken)
        self.tests.append(BranchTest(node, taken, len(self.chain), module, chosen))

    def record_event(self, name: str, call: ast.Call, frame: CallFrame) -> None:
        """Record a call that is compared between ranks."""
        chain = (*self.chain, call)
        event = Event(name, call, frame, self.evaluator, chain, tuple(self.tests), tuple(self.loops))
        self.trace.events.append(event)

    def record_unknown_call(self, call: ast.Call, frame: CallFrame) -> None:
        """Record a call whose source was not read, in a branch: it may do what the other ranks do."""
        if not self.tests:
            return
        names = frame.module.names
        if names.of(call.func) is not None:
            name = names.dotted(call.func) or ""
        else:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        self.trace.unknown_calls.append((name, tuple(self.tests)))

    def record_exit(self, how: str, node: ast.AST) -> str:
        """Record that the rank leaves its block, or the process, early; returns how."""
        early_exit = EarlyExit(how, node, tuple(self.tests), tuple(self.loops), len(self.chain))
        self.trace.early_exits.append(early_exit)
        return how

    def record_raise(self, node: ast.AST) -> str:
        """Record that the rank fails; returns how it leaves."""
        self.trace.raised = True
        return self.record_exit("raise", node)

    def is_failure(self, call: ast.Call, frame: CallFrame) -> bool:
        """Whether a call such as `sys.exit(1)` ends the process with an error."""
        return bool(call.args) and self.evaluator.value(call.args[0], frame) not in (0, None, False)
