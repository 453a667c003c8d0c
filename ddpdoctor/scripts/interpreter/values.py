"""Rehearses expressions: the value that one rank of the imagined job would see.

`Reader(module, place)` follows a value through assignments and the branches around them, attributes, parameters and the
calls that fill them, returns, argparse and dataclass defaults, os.environ, f-strings and int(). It says `Unknown` sooner
than something wrong. A `trusting` reader also believes names: a parameter called `rank` of a function that nobody calls
here is a rank. What stays unknown is asked of `chooser` when it decides a branch, so that all ranks take the same one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter.attributes import attribute_value
from ddpdoctor.scripts.interpreter.branch_oracle import BranchOracle
from ddpdoctor.scripts.interpreter.known_calls import call, method
from ddpdoctor.scripts.interpreter.list_append_model import length_after_appends
from ddpdoctor.scripts.interpreter.loops import is_reduced, unpacked_value
from ddpdoctor.scripts.interpreter.operators import other
from ddpdoctor.scripts.interpreter.parameters import bound_arguments, merged_values, parameter_value
from ddpdoctor.scripts.interpreter.reaching_definitions import is_inside, is_loop_counter, reaching_value
from ddpdoctor.scripts.interpreter.return_values import return_values
from ddpdoctor.scripts.interpreter.simulated_job import (
    CallFrame,
    CallResult,
    DeferredArgument,
    RankContext,
    SimulatedJob,
    Unknown,
    worst,
)
from ddpdoctor.scripts.interpreter.value_cache import CachedValue, Dependency, keep, recall
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.vocabulary import HELPERS, MAKERS, PARAMETERS, SUBGROUP

__all__ = ["CallFrame", "RankEvaluator"]

MAX_DEPTH = 30
MAX_STEPS = 600
"""Expressions that one question may lead to; what takes more stays unknown."""


class RankEvaluator:
    """Reads values as one rank would see them. `is_of_place`: something that it read depends on which rank that is."""

    def __init__(
        self,
        module: Module,
        context: RankContext,
        *,
        trusting: bool = False,
        oracle: BranchOracle | None = None,
    ) -> None:
        self.module = module
        self._context = context
        self.trusting = trusting
        self._oracle = oracle
        self._depth = 0
        self._steps = 0
        self._results: dict[Function, CachedValue] = {}
        self._active: set[tuple[int, int]] = set()
        self._dependencies: set[object] = set()
        self.depends_on_rank = False
        self._frames: dict[tuple[int, int], CallFrame] = {}

    @property
    def context(self) -> RankContext:
        """The rank that reads: what asks for it leans on it."""
        self._dependencies.add(Dependency.RANK)
        self.depends_on_rank = True
        return self._context

    @property
    def job(self) -> SimulatedJob:
        """The job of the rank that reads: what asks for it leans on it, and is the same for all its ranks."""
        self._dependencies.add(Dependency.JOB)
        return self._context.job

    def frame_of(self, node: ast.AST, module: Module | None = None) -> CallFrame:
        """A frame for a node that is read on its own: parameters hold what the calls in the file give them."""
        module = module or self.module
        function = module.index.function_of(node)
        key = (id(module), id(function))
        if key not in self._frames:
            self._frames[key] = CallFrame(module, function)
        return self._frames[key]

    def value(self, node: ast.expr, frame: CallFrame | None = None) -> object:
        """The value of an expression, or Unknown."""
        if isinstance(node, ast.Constant):
            return node.value
        frame = frame or self.frame_of(node)
        read = frame.memory.get(node) or recall(self.trusting, self._context, self._oracle, node, frame)
        if read is None:
            read = self._read(node, frame)
        if self._depth:
            self._dependencies |= read.dependencies
        self.depends_on_rank |= Dependency.RANK in read.dependencies
        return read.value

    def _read(self, node: ast.expr, frame: CallFrame) -> CachedValue:
        key = (id(node), id(frame))
        if self._depth == 0:
            self._steps = 0
        self._steps += 1
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _CUT
        if key in self._active:
            return CachedValue(Unknown.SAME, frozenset((key,)))
        self._depth += 1
        self._active.add(key)
        around, self._dependencies = self._dependencies, set()
        try:
            read = _READ.get(type(node))
            found = read(self, node, frame) if read is not None else other(self, node, frame)
            self._dependencies.discard(key)
            dependencies = frozenset(self._dependencies)
        finally:
            self._depth -= 1
            self._active.discard(key)
            self._dependencies = around
        result = frame.memory[node] = CachedValue(found, dependencies)
        keep(self.trusting, self._context, self._oracle, node, frame, result)
        return result

    def truth(self, node: ast.expr, frame: CallFrame | None = None) -> bool | Unknown:
        """The truth of a condition; what is unknown is chosen, or stays Unknown."""
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
            asked = self._oracle.choose(frame.module, node, value, decides=self._depth == 0)
            if asked is None:
                return value
            self._dependencies.add(asked)
            return value if asked.answer is None else asked.answer
        return bool(value)

    def _all_or_any(self, node: ast.BoolOp, frame: CallFrame) -> bool | Unknown:
        stops = isinstance(node.op, ast.Or)
        unknown: list[object] = []
        for each in node.values:
            truth = self.truth(each, frame)
            if isinstance(truth, Unknown):
                unknown.append(truth)
            elif truth is stops:
                return stops
        return worst(*unknown) if unknown else not stops

    def leave(self, inner: CallFrame, frame: CallFrame) -> None:
        """What leaned on a frame that was copied from another leans on that one."""
        if inner in self._dependencies:
            self._dependencies.discard(inner)
            self._dependencies.add(frame)

    def rank_property(self, word: str) -> object:
        """A number of the rank's place: `rank`, `local_rank`, …, `main` and `local_main` as truth."""
        if word == "main":
            return self.context.rank == 0
        if word == "local_main":
            return self.context.local_rank == 0
        if word == "last":
            return self.context.rank == self.job.world_size - 1
        value: int = getattr(self.job if hasattr(self._context.job, word) else self.context, word)
        return value

    # Names.

    def _name(self, node: ast.Name, frame: CallFrame) -> object:
        value = self._looked_up(node, frame)
        is_named = self.trusting and value is Unknown.SAME and node.id in PARAMETERS
        return self._trusted(node.id) if is_named and not is_loop_counter(node, frame) else value

    def _looked_up(self, node: ast.Name, frame: CallFrame) -> object:
        if node.id in frame.bound:
            self._dependencies.add(frame)
            given = frame.bound[node.id]
            return self.value(given.node, given.frame) if isinstance(given, DeferredArgument) else given
        module = frame.module
        if node.id == "__name__":
            return "__main__"
        scope = module.index.scope(node)
        found = module.names.bindings(node.id, scope)
        if found is None:
            return Unknown.SAME if not self.trusting else self._trusted(node.id)
        owner, bindings = found
        if owner is scope and all(b.how in (Bound.VALUE, Bound.PARAMETER) for b in bindings):
            before = [b for b in bindings if b.line <= node.lineno and b.value is not node and not is_inside(node, b)]
            bindings = before or bindings
        value = reaching_value(self, [(b, self._binding(b, owner.function, frame)) for b in bindings], node, frame)
        if value is Unknown.SAME and self.trusting and all(b.how is Bound.PARAMETER for b in bindings):
            return self._trusted(node.id)
        if isinstance(value, list) and not value:
            more = length_after_appends(self, node, owner, frame)
            value = more if more is not None else value
        if (value is Unknown.DATA or isinstance(value, list)) and is_reduced(
            module, frame.function or module.tree, node
        ):
            return Unknown.SAME
        return value

    def _trusted(self, name: str) -> object:
        word = PARAMETERS.get(name)
        if word is not None:
            return self.rank_property(word)
        return Unknown.VARIES if SUBGROUP.search(name) or name.endswith("rank") else Unknown.SAME

    def _binding(self, binding: Binding, function: Function | None, frame: CallFrame) -> Callable[[], object]:
        def read() -> object:
            here = frame if frame.function is function else self._outer(function, frame)
            if binding.how is Bound.VALUE and binding.value is not None:
                return self.value(binding.value, here)
            if binding.how is Bound.PARAMETER and isinstance(binding.at, ast.arg):
                return parameter_value(self, binding, function, frame.module)
            if binding.how in (Bound.ITEM, Bound.PART) and binding.value is not None:
                return unpacked_value(self, binding, here)
            if binding.how is Bound.CHANGED and binding.value is not None:
                return worst(self.value(binding.value, here))
            if binding.how is Bound.IMPORT:
                return self._imported(frame.module, binding.target)
            return Unknown.SAME

        return read

    def _imported(self, module: Module, dotted: str) -> object:
        """What a module beside assigns once, at its own level, to the name that is imported from it."""
        base, _, name = dotted.rpartition(".")
        other = module.beside(base) if base else None
        bindings = other.index.scopes[other.tree].names.get(name, ()) if other is not None else ()
        if other is None or len(bindings) != 1 or bindings[0].how is not Bound.VALUE or bindings[0].value is None:
            return Unknown.SAME
        return self.value(bindings[0].value, self.frame_of(bindings[0].value, other))

    def _outer(self, function: Function | None, frame: CallFrame) -> CallFrame:
        key = (id(frame.module), id(function))
        if key not in self._frames:
            self._frames[key] = CallFrame(frame.module, function)
        return self._frames[key]

    # Other expressions.

    def _attribute(self, node: ast.Attribute, frame: CallFrame) -> object:
        return attribute_value(self, node, frame)

    def _call(self, node: ast.Call, frame: CallFrame) -> object:
        name = frame.module.names.of(node.func)
        if name is not None:
            if name in MAKERS:
                self._dependencies.add(Dependency.QUESTION)  # it carries its frame
                return CallResult(name, node, frame)
            value = call(self, name, node, frame)
            if value is not NotImplemented:
                return value
        target = frame.module.target(node)
        if target is not None and target.function.name != "__init__":
            return self.returned(target.module, target.function, bound_arguments(self, node, target.function, frame))
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in HELPERS and not node.args and not node.keywords:
            return self.rank_property(HELPERS[last])
        return method(self, node, last, frame)

    def returned(self, module: Module, function: Function, bound: dict[str, object]) -> object:
        """What a function returns, read with these parameters."""
        read = self._results.get(function) if not bound else None
        if read is None:
            read = self._called(module, function, CallFrame(module, function, bound))
        self._dependencies |= read.dependencies
        return read.value

    def _called(self, module: Module, function: Function, frame: CallFrame) -> CachedValue:
        key = (id(function), -1)
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _CUT
        if key in self._active:
            return CachedValue(Unknown.SAME, frozenset((key,)))
        self._active.add(key)
        around, self._dependencies = self._dependencies, set()
        try:
            found = merged_values(return_values(self, function.body, frame))
            dependencies = frozenset(self._dependencies - {key, frame})
        finally:
            self._active.discard(key)
            self._dependencies = around
        result = CachedValue(found, dependencies)
        if not frame.bound:
            self._results[function] = result
        return result


_CUT = CachedValue(Unknown.SAME, frozenset((Dependency.QUESTION,)))


_READ: dict[type, Callable[[RankEvaluator, ast.expr, CallFrame], object]] = {
    ast.Name: RankEvaluator._name,  # type: ignore[dict-item]
    ast.Attribute: RankEvaluator._attribute,  # type: ignore[dict-item]
    ast.Call: RankEvaluator._call,  # type: ignore[dict-item]
}
