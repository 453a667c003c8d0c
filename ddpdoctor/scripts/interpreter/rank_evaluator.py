"""Evaluates expressions as one rank of the simulated job would.

`RankEvaluator(module, context)` follows a value through assignments and the branches around them, attributes, parameters
and the calls that pass them, return values, argparse and dataclass defaults, os.environ, f-strings and int(). It returns
`Unknown` rather than a wrong value. A `trusting` evaluator also uses names as evidence: a parameter called `rank` of a
function that is never called is a rank. Where an unknown value decides a branch, `oracle` decides, the same for all ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown, worst
from ddpdoctor.scripts.interpreter.attributes import attribute_value, value_by_name
from ddpdoctor.scripts.interpreter.branch_oracle import BranchOracle
from ddpdoctor.scripts.interpreter.frames import CachedValue, CallFrame, CallResult, DeferredArgument
from ddpdoctor.scripts.interpreter.known_calls import known_result, unread_result
from ddpdoctor.scripts.interpreter.list_append_model import length_after_appends
from ddpdoctor.scripts.interpreter.loops import is_synchronized, unpacked_value
from ddpdoctor.scripts.interpreter.operators import operator_value
from ddpdoctor.scripts.interpreter.parameters import bound_arguments, merged_value, parameter_value
from ddpdoctor.scripts.interpreter.reaching_definitions import is_inside, is_loop_counter, reaching_value
from ddpdoctor.scripts.interpreter.return_values import return_values
from ddpdoctor.scripts.interpreter.simulated_job import RankContext, SimulatedJob
from ddpdoctor.scripts.interpreter.value_cache import CacheKey, Dependency, recall, store
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.vocabulary import MAKERS

__all__ = ["RankEvaluator"]

MAX_DEPTH = 30
"""Levels of expressions and calls that one evaluation follows."""
MAX_STEPS = 600
"""Expressions that one evaluation may visit; if it needs more, the value is unknown."""


class RankEvaluator:
    """Evaluates expressions as one rank. `depends_on_rank`: a value that it evaluated depends on which rank that is."""

    def __init__(
        self,
        module: Module,
        context: RankContext,
        *,
        trusting: bool = False,
        oracle: BranchOracle | None = None,
    ) -> None:
        self.module = module
        self.trusting = trusting
        self.depends_on_rank = False
        self._context = context
        self._oracle = oracle
        self._cache_key = CacheKey(trusting, context, oracle)
        self._depth = 0
        self._steps = 0
        self._results: dict[Function, CachedValue] = {}
        self._active: set[tuple[int, int]] = set()
        self._dependencies: set[object] = set()
        self._frames: dict[tuple[int, int], CallFrame] = {}

    @property
    def context(self) -> RankContext:
        """The rank; the value being evaluated then depends on it."""
        self._dependencies.add(Dependency.RANK)
        self.depends_on_rank = True
        return self._context

    @property
    def job(self) -> SimulatedJob:
        """The job, the same for all its ranks; the value being evaluated then depends on it."""
        self._dependencies.add(Dependency.JOB)
        return self._context.job

    def rank_property(self, name: str) -> object:
        """A number of the rank's identity: `rank`, `local_rank`, …; `main`, `local_main` and `last` as truth."""
        if name == "main":
            return self.context.rank == 0
        if name == "local_main":
            return self.context.local_rank == 0
        if name == "last":
            return self.context.rank == self.job.world_size - 1
        value: int = getattr(self.job if hasattr(self._context.job, name) else self.context, name)
        return value

    def frame_of(self, node: ast.AST, module: Module | None = None) -> CallFrame:
        """The frame of a node that is evaluated on its own: parameters have the values that the calls in the file pass."""
        module = module or self.module
        return self._frame(module, module.index.function_of(node))

    def _frame(self, module: Module, function: Function | None) -> CallFrame:
        key = (id(module), id(function))
        if key not in self._frames:
            self._frames[key] = CallFrame(module, function)
        return self._frames[key]

    def copied_frame(self, copy: CallFrame, frame: CallFrame) -> None:
        """Record a dependency on a copy of a frame as one on the frame."""
        if copy in self._dependencies:
            self._dependencies.discard(copy)
            self._dependencies.add(frame)

    # Values and conditions.

    def value(self, node: ast.expr, frame: CallFrame | None = None) -> object:
        """The value of an expression, or Unknown."""
        if isinstance(node, ast.Constant):
            return node.value
        frame = frame or self.frame_of(node)
        cached = frame.values.get(node) or recall(self._cache_key, node, frame)
        if cached is None:
            cached = self._evaluate(node, frame)
        if self._depth:
            self._dependencies |= cached.dependencies
        self.depends_on_rank |= Dependency.RANK in cached.dependencies
        return cached.value

    def differs_by_rank(self, node: ast.expr, frame: CallFrame) -> bool:
        """Whether the value of an expression depends on which rank evaluates it."""
        if isinstance(node, ast.Constant):
            return False
        self.value(node, frame)
        cached = frame.values.get(node) or recall(self._cache_key, node, frame)
        return cached is not None and Dependency.RANK in cached.dependencies

    def _evaluate(self, node: ast.expr, frame: CallFrame) -> CachedValue:
        key = (id(node), id(frame))
        if self._depth == 0:
            self._steps = 0
        self._steps += 1
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _LIMIT_REACHED
        if key in self._active:
            return CachedValue(Unknown.SAME, frozenset((key,)))
        self._depth += 1
        self._active.add(key)
        outer_dependencies, self._dependencies = self._dependencies, set()
        try:
            evaluate = _EVALUATE.get(type(node), operator_value)
            value = evaluate(self, node, frame)
            self._dependencies.discard(key)
            dependencies = frozenset(self._dependencies)
        finally:
            self._depth -= 1
            self._active.discard(key)
            self._dependencies = outer_dependencies
        cached = frame.values[node] = CachedValue(value, dependencies)
        store(self._cache_key, node, frame, cached)
        return cached

    def truth(self, node: ast.expr, frame: CallFrame | None = None) -> bool | Unknown:
        """The truth of a condition; if it is unknown, the oracle decides, or it stays Unknown."""
        frame = frame or self.frame_of(node)
        if isinstance(node, ast.BoolOp):
            return self._all_or_any(node, frame)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, frame)
            return inner if isinstance(inner, Unknown) else not inner
        value = self.value(node, frame)
        if isinstance(value, CallResult):
            value = Unknown.SAME
        if isinstance(value, Unknown):
            if self._oracle is None:
                return value
            decision = self._oracle.choose(frame.module, node, value, decides=self._depth == 0)
            if decision is None:
                return value
            self._dependencies.add(decision)
            return value if decision.answer is None else decision.answer
        return bool(value)

    def _all_or_any(self, node: ast.BoolOp, frame: CallFrame) -> bool | Unknown:
        is_or = isinstance(node.op, ast.Or)
        unknown: list[object] = []
        for operand in node.values:
            truth = self.truth(operand, frame)
            if isinstance(truth, Unknown):
                unknown.append(truth)
            elif truth is is_or:
                return is_or
        return worst(*unknown) if unknown else not is_or

    # Names.

    def _name(self, node: ast.Name, frame: CallFrame) -> object:
        value = self._looked_up(node, frame)
        is_evidence = self.trusting and value is Unknown.SAME and node.id in assumptions.RANK_NAMES
        return value_by_name(self, node.id) if is_evidence and not is_loop_counter(node, frame) else value

    def _looked_up(self, node: ast.Name, frame: CallFrame) -> object:
        if node.id in frame.bound:
            self._dependencies.add(frame)
            given = frame.bound[node.id]
            return self.value(given.node, given.frame) if isinstance(given, DeferredArgument) else given
        module = frame.module
        if node.id == "__name__":
            return assumptions.MODULE_NAME
        scope = module.index.scope(node)
        bound = module.names.bindings(node.id, scope)
        if bound is None:
            return Unknown.SAME if not self.trusting else value_by_name(self, node.id)
        owner, bindings = bound
        if owner is scope and all(b.how in (Bound.VALUE, Bound.PARAMETER) for b in bindings):
            before = [b for b in bindings if b.line <= node.lineno and b.value is not node and not is_inside(node, b)]
            bindings = before or bindings
        value = reaching_value(self, [(b, self._deferred(b, owner.function, frame)) for b in bindings], node, frame)
        if value is Unknown.SAME and self.trusting and all(b.how is Bound.PARAMETER for b in bindings):
            return value_by_name(self, node.id)
        if isinstance(value, list) and not value:
            length = length_after_appends(self, node, owner, frame)
            value = length if length is not None else value
        is_own = value is Unknown.DATA or isinstance(value, list)
        return Unknown.SAME if is_own and is_synchronized(module, frame.function or module.tree, node) else value

    def _deferred(self, binding: Binding, function: Function | None, frame: CallFrame) -> Callable[[], object]:
        """The evaluation of the expression that a name is bound to, deferred until it is needed."""

        def evaluate() -> object:
            own_frame = frame if frame.function is function else self._frame(frame.module, function)
            if binding.how is Bound.VALUE and binding.value is not None:
                return self.value(binding.value, own_frame)
            if binding.how is Bound.PARAMETER and isinstance(binding.at, ast.arg):
                return parameter_value(self, binding, function, frame.module)
            if binding.how in (Bound.ITEM, Bound.PART) and binding.value is not None:
                return unpacked_value(self, binding, own_frame)
            if binding.how is Bound.CHANGED and binding.value is not None:
                return worst(self.value(binding.value, own_frame))
            if binding.how is Bound.IMPORT:
                return self._imported_value(frame.module, binding.target)
            return Unknown.SAME

        return evaluate

    def _imported_value(self, module: Module, dotted: str) -> object:
        """The value that a module of the project assigns once, at module level, to the imported name."""
        base, _, name = dotted.rpartition(".")
        other = module.beside(base) if base else None
        bindings = other.index.scopes[other.tree].names.get(name, ()) if other is not None else ()
        if other is None or len(bindings) != 1 or bindings[0].how is not Bound.VALUE or bindings[0].value is None:
            return Unknown.SAME
        return self.value(bindings[0].value, self.frame_of(bindings[0].value, other))

    # Calls.

    def _call(self, node: ast.Call, frame: CallFrame) -> object:
        name = frame.module.names.of(node.func)
        if name is not None:
            if name in MAKERS:
                self._dependencies.add(Dependency.QUESTION)  # the result refers to its frame
                return CallResult(name, node, frame)
            value = known_result(self, name, node, frame)
            if value is not NotImplemented:
                return value
        target = frame.module.target(node)
        if target is not None and target.function.name != "__init__":
            return self.returned(target.module, target.function, bound_arguments(node, target.function, frame))
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in assumptions.HELPER_FUNCTIONS and not node.args and not node.keywords:
            return self.rank_property(assumptions.HELPER_FUNCTIONS[last])
        return unread_result(self, node, last, frame)

    def returned(self, module: Module, function: Function, bound: dict[str, object]) -> object:
        """The value that a function returns for these arguments."""
        result = self._results.get(function) if not bound else None
        if result is None:
            result = self._result_of(function, CallFrame(module, function, bound))
        self._dependencies |= result.dependencies
        return result.value

    def _result_of(self, function: Function, frame: CallFrame) -> CachedValue:
        key = (id(function), -1)
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _LIMIT_REACHED
        if key in self._active:
            return CachedValue(Unknown.SAME, frozenset((key,)))
        self._active.add(key)
        outer_dependencies, self._dependencies = self._dependencies, set()
        try:
            value = merged_value(return_values(self, function.body, frame))
            dependencies = frozenset(self._dependencies - {key, frame})
        finally:
            self._active.discard(key)
            self._dependencies = outer_dependencies
        result = CachedValue(value, dependencies)
        if not frame.bound:
            self._results[function] = result
        return result


_LIMIT_REACHED = CachedValue(Unknown.SAME, frozenset((Dependency.QUESTION,)))


_EVALUATE: dict[type, Callable[[RankEvaluator, ast.expr, CallFrame], object]] = {
    ast.Name: RankEvaluator._name,  # type: ignore[dict-item]
    ast.Attribute: attribute_value,  # type: ignore[dict-item]
    ast.Call: RankEvaluator._call,  # type: ignore[dict-item]
}
