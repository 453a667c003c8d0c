"""Rehearses expressions: the value that one rank of the imagined job would see.

`Reader(module, place)` follows a value through assignments and the branches around them, attributes, parameters and the
calls that fill them, returns, argparse and dataclass defaults, os.environ, f-strings and int(). It says `Unknown` sooner
than something wrong. A `trusting` reader also believes names: a parameter called `rank` of a function that nobody calls
here is a rank. What stays unknown is asked of `chooser` when it decides a branch, so that all ranks take the same one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter.attributes import attribute
from ddpdoctor.scripts.interpreter.branch_oracle import Chooser
from ddpdoctor.scripts.interpreter.known_calls import call, method
from ddpdoctor.scripts.interpreter.list_append_model import grown
from ddpdoctor.scripts.interpreter.loops import is_reduced, part_of
from ddpdoctor.scripts.interpreter.operators import other
from ddpdoctor.scripts.interpreter.parameters import agreed, arguments, parameter
from ddpdoctor.scripts.interpreter.reaching_definitions import counts, is_inside, joined
from ddpdoctor.scripts.interpreter.return_values import returns
from ddpdoctor.scripts.interpreter.simulated_job import Frame, Job, Later, Made, Place, Unknown, worst
from ddpdoctor.scripts.interpreter.value_cache import Lean, Read, keep, recall
from ddpdoctor.scripts.syntax.index import Binding, Bound
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.vocabulary import HELPERS, MAKERS, PARAMETERS, SUBGROUP

__all__ = ["Frame", "Reader"]

MAX_DEPTH = 30
MAX_STEPS = 600
"""Expressions that one question may lead to; what takes more stays unknown."""


class Reader:
    """Reads values as one rank would see them. `is_of_place`: something that it read depends on which rank that is."""

    def __init__(
        self,
        module: Module,
        place: Place,
        *,
        trusting: bool = False,
        chooser: Chooser | None = None,
    ) -> None:
        self.module = module
        self._place = place
        self.trusting = trusting
        self._chooser = chooser
        self._depth = 0
        self._steps = 0
        self._results: dict[Function, Read] = {}
        self._active: set[tuple[int, int]] = set()
        self._leans: set[object] = set()
        self.is_of_place = False
        self._frames: dict[tuple[int, int], Frame] = {}

    @property
    def place(self) -> Place:
        """The rank that reads: what asks for it leans on it."""
        self._leans.add(Lean.PLACE)
        self.is_of_place = True
        return self._place

    @property
    def job(self) -> Job:
        """The job of the rank that reads: what asks for it leans on it, and is the same for all its ranks."""
        self._leans.add(Lean.JOB)
        return self._place.job

    def frame_of(self, node: ast.AST, module: Module | None = None) -> Frame:
        """A frame for a node that is read on its own: parameters hold what the calls in the file give them."""
        module = module or self.module
        function = module.index.function_of(node)
        key = (id(module), id(function))
        if key not in self._frames:
            self._frames[key] = Frame(module, function)
        return self._frames[key]

    def value(self, node: ast.expr, frame: Frame | None = None) -> object:
        """The value of an expression, or Unknown."""
        if isinstance(node, ast.Constant):
            return node.value
        frame = frame or self.frame_of(node)
        read = frame.memory.get(node) or recall(self.trusting, self._place, self._chooser, node, frame)
        if read is None:
            read = self._read(node, frame)
        if self._depth:
            self._leans |= read.leans
        self.is_of_place |= Lean.PLACE in read.leans
        return read.value

    def _read(self, node: ast.expr, frame: Frame) -> Read:
        key = (id(node), id(frame))
        if self._depth == 0:
            self._steps = 0
        self._steps += 1
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _CUT
        if key in self._active:
            return Read(Unknown.SAME, frozenset((key,)))
        self._depth += 1
        self._active.add(key)
        around, self._leans = self._leans, set()
        try:
            read = _READ.get(type(node))
            found = read(self, node, frame) if read is not None else other(self, node, frame)
            self._leans.discard(key)
            leans = frozenset(self._leans)
        finally:
            self._depth -= 1
            self._active.discard(key)
            self._leans = around
        result = frame.memory[node] = Read(found, leans)
        keep(self.trusting, self._place, self._chooser, node, frame, result)
        return result

    def truth(self, node: ast.expr, frame: Frame | None = None) -> bool | Unknown:
        """The truth of a condition; what is unknown is chosen, or stays Unknown."""
        frame = frame or self.frame_of(node)
        if isinstance(node, ast.BoolOp):
            return self._all_or_any(node, frame)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, frame)
            return inner if isinstance(inner, Unknown) else not inner
        value = self.value(node, frame)
        if isinstance(value, Made):
            value = Unknown.SAME
        if isinstance(value, Unknown):
            if self._chooser is None:
                return value
            asked = self._chooser.choose(frame.module, node, value, decides=self._depth == 0)
            if asked is None:
                return value
            self._leans.add(asked)
            return value if asked.answer is None else asked.answer
        return bool(value)

    def _all_or_any(self, node: ast.BoolOp, frame: Frame) -> bool | Unknown:
        stops = isinstance(node.op, ast.Or)
        unknown: list[object] = []
        for each in node.values:
            truth = self.truth(each, frame)
            if isinstance(truth, Unknown):
                unknown.append(truth)
            elif truth is stops:
                return stops
        return worst(*unknown) if unknown else not stops

    def leave(self, inner: Frame, frame: Frame) -> None:
        """What leaned on a frame that was copied from another leans on that one."""
        if inner in self._leans:
            self._leans.discard(inner)
            self._leans.add(frame)

    def place_value(self, word: str) -> object:
        """A number of the rank's place: `rank`, `local_rank`, …, `main` and `local_main` as truth."""
        if word == "main":
            return self.place.rank == 0
        if word == "local_main":
            return self.place.local_rank == 0
        if word == "last":
            return self.place.rank == self.job.world_size - 1
        value: int = getattr(self.job if hasattr(self._place.job, word) else self.place, word)
        return value

    # Names.

    def _name(self, node: ast.Name, frame: Frame) -> object:
        value = self._looked_up(node, frame)
        is_named = self.trusting and value is Unknown.SAME and node.id in PARAMETERS
        return self._trusted(node.id) if is_named and not counts(node, frame) else value

    def _looked_up(self, node: ast.Name, frame: Frame) -> object:
        if node.id in frame.bound:
            self._leans.add(frame)
            given = frame.bound[node.id]
            return self.value(given.node, given.frame) if isinstance(given, Later) else given
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
        value = joined(self, [(b, self._binding(b, owner.function, frame)) for b in bindings], node, frame)
        if value is Unknown.SAME and self.trusting and all(b.how is Bound.PARAMETER for b in bindings):
            return self._trusted(node.id)
        if isinstance(value, list) and not value:
            more = grown(self, node, owner, frame)
            value = more if more is not None else value
        if (value is Unknown.DATA or isinstance(value, list)) and is_reduced(
            module, frame.function or module.tree, node
        ):
            return Unknown.SAME
        return value

    def _trusted(self, name: str) -> object:
        word = PARAMETERS.get(name)
        if word is not None:
            return self.place_value(word)
        return Unknown.VARIES if SUBGROUP.search(name) or name.endswith("rank") else Unknown.SAME

    def _binding(self, binding: Binding, function: Function | None, frame: Frame) -> Callable[[], object]:
        def read() -> object:
            here = frame if frame.function is function else self._outer(function, frame)
            if binding.how is Bound.VALUE and binding.value is not None:
                return self.value(binding.value, here)
            if binding.how is Bound.PARAMETER and isinstance(binding.at, ast.arg):
                return parameter(self, binding, function, frame.module)
            if binding.how in (Bound.ITEM, Bound.PART) and binding.value is not None:
                return part_of(self, binding, here)
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

    def _outer(self, function: Function | None, frame: Frame) -> Frame:
        key = (id(frame.module), id(function))
        if key not in self._frames:
            self._frames[key] = Frame(frame.module, function)
        return self._frames[key]

    # Other expressions.

    def _attribute(self, node: ast.Attribute, frame: Frame) -> object:
        return attribute(self, node, frame)

    def _call(self, node: ast.Call, frame: Frame) -> object:
        name = frame.module.names.of(node.func)
        if name is not None:
            if name in MAKERS:
                self._leans.add(Lean.MOMENT)  # it carries its frame
                return Made(name, node, frame)
            value = call(self, name, node, frame)
            if value is not NotImplemented:
                return value
        target = frame.module.target(node)
        if target is not None and target.function.name != "__init__":
            return self.returned(target.module, target.function, arguments(self, node, target.function, frame))
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in HELPERS and not node.args and not node.keywords:
            return self.place_value(HELPERS[last])
        return method(self, node, last, frame)

    def returned(self, module: Module, function: Function, bound: dict[str, object]) -> object:
        """What a function returns, read with these parameters."""
        read = self._results.get(function) if not bound else None
        if read is None:
            read = self._called(module, function, Frame(module, function, bound))
        self._leans |= read.leans
        return read.value

    def _called(self, module: Module, function: Function, frame: Frame) -> Read:
        key = (id(function), -1)
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return _CUT
        if key in self._active:
            return Read(Unknown.SAME, frozenset((key,)))
        self._active.add(key)
        around, self._leans = self._leans, set()
        try:
            found = agreed(returns(self, function.body, frame))
            leans = frozenset(self._leans - {key, frame})
        finally:
            self._active.discard(key)
            self._leans = around
        result = Read(found, leans)
        if not frame.bound:
            self._results[function] = result
        return result


_CUT = Read(Unknown.SAME, frozenset((Lean.MOMENT,)))


_READ: dict[type, Callable[[Reader, ast.expr, Frame], object]] = {
    ast.Name: Reader._name,  # type: ignore[dict-item]
    ast.Attribute: Reader._attribute,  # type: ignore[dict-item]
    ast.Call: Reader._call,  # type: ignore[dict-item]
}
