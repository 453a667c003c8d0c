"""Executes a program forwards, once for all ranks: each value carries what makes it differ between them.

Functions of the project are executed at their calls; both sides of an undecided branch are executed and joined; loops run
twice, so that what one iteration does to a value is seen by the next. What the source does not show is not `certain`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ddpdoctor.scripts.histories import quantities
from ddpdoctor.scripts.histories.record import Communication, Frame, Mistake, MistakeKind, Obligation, State
from ddpdoctor.scripts.histories.values import (
    NOTHING,
    OWN,
    SAME,
    UNKNOWN,
    Condition,
    DiffersBy,
    Power,
    Traced,
    TracedKind,
    derived,
    joined,
)
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import SCOPES, Function

__all__ = ["Executor", "ProgramTooLong"]

MAX_CALLS = 12
"""Most calls inside each other that are followed."""
MAX_STATEMENTS = 6000
"""Most statements of one program; of a longer one, only the beginning is known."""
Arguments = tuple[list[Traced], dict[str, Traced]]
Library = Callable[["Executor", ast.Call, str, list[Traced], dict[str, Traced]], "Traced | None"]
MethodLibrary = Callable[["Executor", ast.Call, Traced, str, list[Traced], dict[str, Traced]], "Traced | None"]


class ProgramTooLong(Exception):
    """The program has more statements than are executed."""


class Executor:
    """One execution. `library` and `methods` know the functions that the project does not define."""

    def __init__(self, module: Module, library: Library, methods: MethodLibrary) -> None:
        self.state = State()
        self.mistakes: list[Mistake] = []
        self.log: list[Communication] = []
        self.frames: list[Frame] = []
        self.contexts: list[str] = []
        self.left = MAX_STATEMENTS
        self.reads: set[str] = set()
        self.tensor_mesh: ast.AST | None = None
        self.samplers: list[tuple[int, Module, ast.AST]] = []
        self.loaders: list[tuple[Module, ast.AST, Traced, Traced | None, bool]] = []
        self.hand_reduced: set[int] = set()
        self._loops: list[tuple[int, list[tuple[str, Traced, ast.expr, Module, int]]]] = []
        self.bypassed: list[tuple[int, Module, ast.AST, TracedKind]] = []
        self.gathers: list[tuple[Module, ast.AST]] = []
        self.is_one_node = False
        self.noted: dict[str, tuple[Module, ast.AST]] = {}
        self.turns: list[int] = []
        self.opened: dict[int, tuple[tuple[int, ...], Module, ast.AST]] = {}
        self.late: dict[int, tuple[tuple[int, ...], Module, ast.AST, ast.AST]] = {}
        self.variables: dict[str, tuple[Traced, Module, ast.AST]] = {}
        self.contents: dict[object, tuple[dict[str, bool], Module, ast.AST]] = {}
        self.updates: dict[int, bool] = {}
        self.is_child = False
        self._own_batches: list[bool] = []
        self._loader_depth: list[bool] = []
        self._library = library
        self._methods = methods
        self._last = 0
        self._modules: dict[int, int] = {}
        self._running: list[ast.AST] = []
        self._owners: dict[int, Frame] = {}
        self._made_in: dict[int, Module] = {}
        self._root = module

    # Bookkeeping that the library uses.

    @property
    def frame(self) -> Frame:
        """The running call."""
        return self.frames[-1]

    @property
    def module(self) -> Module:
        """The file that is running."""
        return self.frames[-1].module

    def new(self, value: Traced, node: ast.AST | None = None) -> Traced:
        """Give a value an identity, so that it can be changed in place."""
        self._last += 1
        made = replace(value, ref=self._last, made=node)
        self.state.heap[made.ref] = made
        if node is not None and self.frames:
            self._made_in[made.ref] = self.module
        return made

    def now(self, value: Traced) -> Traced:
        """The present state of a value."""
        return self.state.heap.get(value.ref, value) if value.ref else value

    def change(self, value: Traced, **fields: Any) -> Traced:
        """Change a value in place."""
        changed = replace(self.now(value), **fields)
        if changed.ref:
            self.state.heap[changed.ref] = changed
        return changed

    def mistake(self, kind: MistakeKind, node: ast.AST, earlier: ast.AST | None = None, subject: str = "") -> None:
        """Record a mistake once for each place."""
        self.mistake_in(kind, self.module, node, earlier, subject)

    def mistake_in(
        self, kind: MistakeKind, module: Module, node: ast.AST, earlier: ast.AST | None = None, subject: str = ""
    ) -> None:
        """Record a mistake in a file."""
        if not any(m.kind is kind and m.node is node for m in self.mistakes):
            self.mistakes.append(Mistake(kind, module, node, earlier, subject))

    def communicate(self, operation: str, node: ast.AST, group: object = None) -> None:
        """Record a call in which other ranks take part."""
        self.log.append(Communication(operation, node, self.module, group, self.frame.function))

    def only_rank(self) -> tuple[DiffersBy, object] | None:
        """The only rank that executes this, by the innermost condition that says so."""
        return next((c.rank for c in reversed(self.state.conditions) if c.rank is not None), None)

    def differs_here(self) -> bool:
        """Whether only some of the ranks execute this, or it is unknown."""
        return any(c.value.origins for c in self.state.conditions)

    # What machines ask.

    def root(self, ref: int) -> int:
        """The ref of the outermost module that contains a module."""
        for _ in range(8):
            value = self.state.heap.get(ref)
            if value is None or not value.of or value.of == ref:
                break
            ref = value.of
        return ref

    @property
    def knows_rank(self) -> bool:
        """Whether the job is known to have several nodes: the file distinguishes rank and local rank."""
        if self.is_one_node:
            return False
        return bool(_GLOBAL_RANK.search(self._root.text))

    def own_node(self, node: ast.AST | None, otherwise: ast.AST) -> ast.AST:
        """A node if it belongs to the running file, otherwise the other one."""
        return node if node is not None and node in self.module.index.parents else otherwise

    def module_of(self, value: Traced) -> Module:
        """The file in which a value was made."""
        return self._made_in.get(value.ref, self.module)

    def in_training_loop(self) -> bool:
        """Whether this runs for each batch of the rank's own data."""
        return any(self._own_batches)

    @property
    def depth(self) -> int:
        """How many loops are running."""
        return len(self._loops)

    def in_loader_loop(self) -> bool:
        """Whether the innermost loop reads batches of a DataLoader."""
        return bool(self._loader_depth) and self._loader_depth[-1]

    def barrier(self) -> None:
        """All ranks have executed what came before."""
        if not self.differs_here():
            self.state.settle_files()

    def owe(self, ref: int, kind: MistakeKind, node: ast.AST, on: str = "backward") -> None:
        """Something must still happen to a module before its next synchronized use."""
        owed = self.state.obligations.get(ref, ())
        self.state.obligations[ref] = (*owed, Obligation(kind, self.module, node, on))

    def owe_where_decided(self, ref: int, kind: MistakeKind, node: ast.AST, on: str = "backward") -> None:
        """The same, at the condition that lets only one rank come here."""
        decided = next((c for c in reversed(self.state.conditions) if c.rank is not None), None)
        owed = self.state.obligations.get(ref, ())
        new = (
            Obligation(kind, self.module, node, on)
            if decided is None
            else Obligation(kind, decided.module, decided.node, on)
        )
        self.state.obligations[ref] = (*owed, new)

    def use_module(self, ref: int, on: str) -> None:
        """A module is used: what is still owed is a mistake."""
        for owed in self.state.obligations.get(ref, ()):
            if owed.on == on:
                self.mistake_in(owed.kind, owed.module, owed.node)

    def parameters_synchronized(self, ref: int) -> None:
        """The parameters of a module were broadcast."""
        root = self.root(ref)
        value = self.state.heap.get(root)
        if value is not None:
            self.change(value, marks=value.marks - {"own-start"})
        self.state.obligations.pop(root, None)

    def buffers_synchronized(self, ref: int) -> None:
        """The buffers of a module were made equal."""
        value = self.state.heap.get(self.root(ref))
        if value is not None:
            self.change(value, marks=value.marks | {"buffers-equal"})

    def gradient_reduced(self, gradient: Traced, node: ast.AST, *, whole: bool) -> None:
        """The gradients of a module are reduced by hand."""
        root = self.root(gradient.of)
        self.hand_reduced.add(root)
        value = self.state.heap.get(root)
        if (
            whole
            and value is not None
            and value.has("own-start")
            and not value.has("wrapped")
            and value.made is not None
        ):
            self.mistake_in(MistakeKind.UNLIKE_START, self._made_in.get(value.ref, self.module), value.made)
        if gradient.has("unscaled") and gradient.made is not None:
            self.mistake(MistakeKind.UNSCALED_TOO_EARLY, gradient.made, node)
        if gradient.has("reduced-and-accumulated") and whole:
            self.mistake(MistakeKind.REDUCED_AGAIN, node)
        self.change(gradient, marks=gradient.marks | ({"hand-reduced"} if whole else set()))

    def stream(self, dataset: Traced, node: ast.AST, workers: Traced | None) -> None:
        """A loader reads a stream: see whether its records are divided among ranks and workers."""
        cls = dataset.constant
        if (
            dataset.kind is not TracedKind.DATASET
            or not isinstance(cls, tuple)
            or not cls[0].is_a(cls[1], "IterableDataset")
        ):
            return
        method = self.method_of(dataset, "__iter__")
        known = all(v.certain and v.kind is not TracedKind.UNKNOWN for v in map(self.now, dataset.fields.values()))
        if method is None or method.constant is None or not known:
            return
        kept, self.reads = self.reads, set()
        result = self.call_function(method, [], {}, dataset)
        reads, self.reads = self.reads, kept
        del result
        by_rank = "rank" in reads
        if "worker" in reads and not by_rank and "unknown" not in reads and self.is_parallel():
            self.mistake_in(MistakeKind.STREAM_NOT_SPLIT_BY_RANK, self.module, node)
        several = workers is not None and workers.certain and workers.constant != 0
        if by_rank and "worker" not in reads and several:
            self.mistake_in(MistakeKind.STREAM_NOT_SPLIT_BY_WORKER, self.module, node)

    def is_parallel(self) -> bool:
        """Whether the file trains on several ranks."""
        return bool(self._root.calls("dist.init_process_group"))

    # Programs and functions.

    def program(self) -> None:
        """Execute the file as a program."""
        self._module_frame(self._root, keep=True)

    def _module_frame(self, module: Module, *, keep: bool = False) -> int:
        key = id(module)
        if key not in self._modules or self._modules[key] not in self.state.names:
            number = self._new_frame(Frame(0, module, None, None))
            self._modules[key] = number
            self._run_frame(module.tree.body)
            if not keep:
                self.contexts = list(self.contexts)
        return self._modules[key]

    def _new_frame(self, frame: Frame) -> int:
        self._last += 1
        frame.number = self._last
        self._owners[frame.number] = frame
        self.state.names[frame.number] = {}
        self.frames.append(frame)
        return frame.number

    def _run_frame(self, body: list[ast.stmt]) -> None:
        depth = len(self.state.conditions)
        try:
            self.block(body)
            self._early_returns(depth)
            self._one_sided()
        finally:
            del self.state.conditions[depth:]
            self.frames.pop()

    def _one_sided(self) -> None:
        """Calls that only one rank reaches, hidden in functions: unless the other ranks make theirs elsewhere."""
        sides = self.frame.one_sided
        if len({side for side, _, _ in sides}) != 1 or any(c.value.origins for c in self.state.conditions):
            return
        for _, test, events in sides:
            for event in events:
                hidden = event.module is not self.module or event.function is not self.frame.function
                if hidden and event.group is None and event.operation in _DATA_CALLS:
                    self.mistake_in(MistakeKind.HIDDEN_ON_ONE_RANK, self.module, test, event.node, event.operation)

    def _early_returns(self, depth: int) -> None:
        """Ranks that return early on their own, before a call in which the others wait for them."""
        if any(c.value.origins for c in self.state.conditions[:depth]):
            return
        for value, test, at in self.frame.exits:
            world = [c for c in self.log[at:] if c.group is None]
            if world and value.is_own:
                self.mistake(MistakeKind.DECIDED_ALONE, test, world[0].node, "return")

    def call_function(
        self, value: Traced, args: list[Traced], kw: dict[str, Traced], owner: Traced | None = None
    ) -> Traced:
        """Execute a function of the project."""
        module, function, outer = value.constant
        if function in self._running or len(self._running) >= MAX_CALLS:
            return UNKNOWN
        given = [owner, *args] if owner is not None else args
        frame = Frame(0, module, function, outer)
        self._new_frame(frame)
        self._bind_parameters(function, given, kw)
        self._running.append(function)
        quiet = [d for d in getattr(function, "decorator_list", ()) if is_no_grad(d)]
        self.contexts += ["no_grad"] * bool(quiet)
        try:
            if isinstance(function, ast.Lambda):
                result = self.eval(function.body)
                self.frames.pop()
                return result
            self._run_frame(function.body)
        finally:
            self._running.pop()
            if quiet:
                self.contexts.remove("no_grad")
        if not any(isinstance(node, SCOPES) for body in function.body for node in ast.walk(body)):
            self.state.names.pop(frame.number, None)
        return self._result(frame)

    def _result(self, frame: Frame) -> Traced:
        if frame.yielded:
            item = frame.yielded[0]
            for other in frame.yielded[1:]:
                item = joined(item, other, None)
            own = [v for v in frame.decided_by if v.is_own]
            marks = {"uneven"} if own else set()
            return Traced(TracedKind.LIST, item.origins, item.certain, fields={"item": item}, marks=frozenset(marks))
        if not frame.returned:
            return NOTHING
        result = frame.returned[0]
        decided = next((v for v in frame.decided_by if v.certain and v.origins), None)
        for other in frame.returned[1:]:
            result = joined(result, other, decided)
        return result

    def _bind_parameters(self, function: Function | ast.Lambda, given: list[Traced], kw: dict[str, Traced]) -> None:
        names = self.state.names[self.frame.number]
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(
            zip(
                [a.arg for a in positional][len(positional) - len(arguments.defaults) :],
                arguments.defaults,
                strict=True,
            )
        )
        defaults |= {
            a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None
        }
        for position, parameter in enumerate(positional):
            if position < len(given):
                names[parameter.arg] = given[position]
        for parameter in [*positional, *arguments.kwonlyargs]:
            if parameter.arg in kw:
                names[parameter.arg] = kw[parameter.arg]
            elif parameter.arg not in names:
                default = defaults.get(parameter.arg)
                names[parameter.arg] = self.eval(default) if default is not None else UNKNOWN
        if arguments.vararg is not None:
            rest = tuple(given[len(positional) :])
            names[arguments.vararg.arg] = Traced(TracedKind.LIST, certain=True, items=rest)
        if arguments.kwarg is not None:
            names[arguments.kwarg.arg] = UNKNOWN

    # Statements: each returns how the block was left early, None if it was not.

    def block(self, body: list[ast.stmt]) -> str | None:
        """Execute statements in order."""
        for statement in body:
            self.left -= 1
            if self.left < 0:
                raise ProgramTooLong
            left = self.statement(statement)
            if left is not None:
                return left
        return None

    def statement(self, node: ast.stmt) -> str | None:
        """Execute one statement."""
        execute = _STATEMENTS.get(type(node))
        return execute(self, node) if execute is not None else None

    def _function(self, node: Function) -> None:
        self._store_name(
            node.name, Traced(TracedKind.FUNCTION, certain=True, constant=(self.module, node, self.frame.number))
        )

    def _class(self, node: ast.ClassDef) -> None:
        self._store_name(
            node.name, Traced(TracedKind.CLASS, certain=True, constant=(self.module, node, self.frame.number))
        )

    def _expression(self, node: ast.Expr) -> None:
        self.eval(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.store(target, value, node)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.store(node.target, self.eval(node.value), node)

    def _augmented(self, node: ast.AugAssign) -> None:
        before, operand = self.eval(node.target), self.eval(node.value)
        value = self.binary(node.op, before, operand, node)
        if isinstance(node.op, ast.Add):
            value = quantities.added(self, value, operand)
        place = before
        if isinstance(node.target, ast.Subscript):
            place = self.eval(node.target.value)
            changed = self.binary(node.op, replace(self.now(place), items=None), operand, node)
            if isinstance(node.op, ast.Add):
                changed = quantities.added(self, changed, operand)
            if place.ref and place.kind in (TracedKind.TENSOR, TracedKind.GRADIENT):
                self.change(
                    place,
                    origins=changed.origins,
                    certain=changed.certain,
                    marks=changed.marks | self.now(place).marks,
                    power=changed.power,
                )
            return
        if place.ref and place.kind in (TracedKind.TENSOR, TracedKind.GRADIENT):
            self.change(
                place,
                origins=value.origins,
                certain=value.certain,
                power=value.power,
                marks=value.marks | self.now(place).marks,
                trains=value.trains,
            )
            return
        self.store(node.target, value, node)

    def store(self, target: ast.expr, value: Traced, node: ast.AST) -> None:
        """Assign a value."""
        if isinstance(target, ast.Name):
            self._store_name(target.id, value, replaces=isinstance(node, ast.Assign))
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = self.parts(value, len(target.elts))
            for element, part in zip(target.elts, parts, strict=True):
                self.store(element, part, node)
        elif isinstance(target, ast.Starred):
            self.store(target.value, replace(value, items=None), node)
        elif isinstance(target, ast.Attribute):
            self.set_field(self.eval(target.value), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.eval(target.value), self.eval(target.slice), value, target)

    def _store_name(self, name: str, value: Traced, *, replaces: bool = False) -> None:
        frame = self.frame
        if name in frame.outer_names:
            owner: Frame | None = frame
            while owner is not None and owner.outer is not None:
                owner = self._owners.get(owner.outer)
                if owner is not None and name in self.state.names.get(owner.number, {}):
                    self.state.names[owner.number][name] = value
                    return
        names = self.state.names.setdefault(frame.number, {})
        old = names.get(name)
        if replaces and old is not None and old.kind is TracedKind.HANDLE and value.kind is TracedKind.HANDLE:
            before = self.now(old)
            if before.has("unwaited") and before.made is value.made and before.made is not None:
                self.mistake(MistakeKind.HANDLE_OVERWRITTEN, before.made)
        names[name] = value

    def set_field(self, owner: Traced, name: str, value: Traced, node: ast.AST) -> None:
        """Assign an attribute; the library sees what it means for a module or parameter."""
        self._methods(self, _SETTER, owner, f"={name}", [value, Traced(TracedKind.CONSTANT, made=node)], {})
        if owner.ref:
            self.change(owner, fields={**self.now(owner).fields, name: value})

    def set_item(self, owner: Traced, key: Traced, value: Traced, node: ast.AST) -> None:
        """Assign an element."""
        present = self.now(owner)
        if owner.symbol == ("external", "os.environ") and isinstance(key.constant, str):
            self._methods(self, _SETTER, owner, "=environ", [key, value, Traced(made=node)], {})
        if not owner.ref:
            return
        if present.kind is TracedKind.DICT:
            entry = joined(present.fields["item"], value, None) if "item" in present.fields else value
            own = next((c.value for c in self.state.conditions if c.value.is_own), None)
            marks = present.marks | ({"own-keys"} if own is not None else set())
            fields = {**present.fields, "item": entry, f"[{key.constant}]": value}
            if "(key)" not in fields and key.marks & _NAMES:
                fields["(key)"] = key
            self.change(owner, fields=fields, marks=marks)
        elif present.kind is TracedKind.LIST:
            own_slot = bool({DiffersBy.RANK} & key.origins)
            marks = present.marks - {"gathered"} if own_slot else present.marks
            if own_slot and "item" in present.fields:
                item = self.now(present.fields["item"]).without("gathered")
                present = self.change(owner, fields={**present.fields, "item": replace(item, ref=0)})
            self.change(owner, items=None, marks=marks, trains=present.trains | value.trains)
        elif present.kind is TracedKind.TENSOR:
            merged = derived(TracedKind.TENSOR, present, value, key)
            self.change(owner, origins=merged.origins, certain=merged.certain, marks=present.marks | merged.marks)

    def parts(self, value: Traced, count: int) -> list[Traced]:
        """What unpacking gives to each of `count` targets."""
        value = self.now(value)
        if value.items is not None and len(value.items) == count:
            return [self.now(v) for v in value.items]
        one = self.item_of(value)
        if one.kind is TracedKind.LIST and one.items is not None and len(one.items) == count:
            return list(one.items)
        return [replace(one, ref=0, items=None) if one.kind is TracedKind.TENSOR else one] * count

    def item_of(self, value: Traced) -> Traced:
        """One element of a collection."""
        value = self.now(value)
        known = self._methods(self, _SETTER, value, "[item]", [], {})
        if known is not None:
            return known
        if "item" in value.fields:
            return self.now(value.fields["item"])
        if value.items:
            item = self.now(value.items[0])
            for other in value.items[1:]:
                item = joined(item, self.now(other), None)
            return item
        if value.kind in (TracedKind.TENSOR, TracedKind.GRADIENT):
            return replace(value, ref=0, items=None)
        return replace(
            value, kind=TracedKind.UNKNOWN, ref=0, items=None, fields={}, certain=value.certain and bool(value.origins)
        )

    def _return(self, node: ast.Return) -> str:
        value = self.eval(node.value) if node.value is not None else NOTHING
        self.frame.returned.append(value)
        return "return"

    # Branches.

    def _if(self, node: ast.If) -> str | None:
        value = self.eval(node.test)
        truth = self.truth(value)
        if truth is not None:
            return self.block(node.body if truth else node.orelse)
        return self.branch(value, node.test, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def truth(self, value: Traced) -> bool | None:
        """The truth of a value that is the same constant on all ranks."""
        if value.kind is TracedKind.CONSTANT and value.certain and not value.origins:
            return bool(value.constant)
        if (
            value.kind
            in (TracedKind.MODULE, TracedKind.GROUP, TracedKind.OBJECT, TracedKind.WRAPPER, TracedKind.HANDLE)
            and value.certain
        ):
            return True
        return None

    def branch(
        self, value: Traced, test: ast.expr, body: Callable[[], str | None], orelse: Callable[[], str | None]
    ) -> str | None:
        """Execute both sides of a branch and join them."""
        other = self.state.fork()
        depth = len(self.state.conditions)
        begin = len(self.log)
        self.state.conditions.append(Condition(value, test, True, self.module))
        left = body()
        middle = len(self.log)
        taken, self.state = self.state, other
        self.state.conditions.append(Condition(value, test, False, self.module))
        left_else = orelse()
        ends = self.log[begin:middle], self.log[middle:]
        skipped = self.state
        self._compare(value, test, *ends)
        if left is not None and left_else is not None:
            self.state.join_heap(taken, value)
            del self.state.conditions[depth:]
            self._exits(value, test, left if left == "return" else None, begin)
            return left if left == left_else else ("return" if "return" in (left, left_else) else left)
        if left is None and left_else is None:
            del taken.conditions[depth:], skipped.conditions[depth:]
            self.state = taken
            self.state.join(skipped, value)
            if not self.differs_here() and any(c.operation == "dist.barrier" for side in ends for c in side):
                self.state.settle_files()  # the barrier of one side is paired with one of the other, here or further down
            return None
        self._exits(value, test, left or left_else, begin)
        if value.certain and value.origins:
            self.frame.decided_by.append(value)
        stays, gone = (skipped, taken) if left is not None else (taken, skipped)
        self.state = stays
        raised = "raise" in (left, left_else)
        if not raised:
            self.state.join_heap(gone, value)
            if left in ("break", "continue") or left_else in ("break", "continue"):
                self._join_names(gone, value)
        if raised:
            del self.state.conditions[depth:]
        return None

    def _join_names(self, gone: State, value: Traced) -> None:
        """Names keep the values of the path that stays, and differ between ranks if the condition does."""
        if not (value.certain and value.origins):
            return
        for number, values in gone.names.items():
            mine = self.state.names.get(number, {})
            for name, old in values.items():
                if name in mine and mine[name] != old and not mine[name].ref:
                    mine[name] = joined(mine[name], old, value)

    def _exits(self, value: Traced, test: ast.expr, how: str | None, begin: int) -> None:
        if how in ("break", "continue", "return"):
            for number, loop in reversed(self._loops):
                if number == self.frame.number:
                    loop.append((how, value, test, self.module, begin))
                if how != "return":
                    return
            if how == "return":
                self.frame.exits.append((value, test, begin))

    def _compare(self, value: Traced, test: ast.expr, one: list[Communication], two: list[Communication]) -> None:
        """What both sides of a branch communicate, if the ranks decide it differently."""
        if not value.certain or not value.origins:
            return
        first, second = [(c.operation, c.group) for c in one], [(c.operation, c.group) for c in two]
        if first == second:
            return
        if all(operation == "submodule" for operation, _ in (*first, *second)):
            if "forward" in self.contexts and value.origins & {DiffersBy.RANDOM, DiffersBy.DATA}:
                self.mistake(MistakeKind.FORWARD_RANDOM, test)
            return
        if value.origins & OWN and not any(c.value.origins - OWN for c in self.state.conditions[:-1]):
            if any(group is None for _, group in set(first) ^ set(second)) or len(first) != len(second):
                self.mistake(MistakeKind.DECIDED_ALONE, test, (one or two)[0].node)
            return
        if value.rank_is is not None and not (one and two):
            self.frame.one_sided.append((value.rank_is[2] is bool(one), test, tuple(one or two)))
        for event in (*one, *two) if not (one and two) else ():
            kind = _ON_ONE_RANK.get(event.operation)
            if kind is not None:
                self.mistake_in(kind, event.module, event.node, test, event.operation)
        groups = {group for _, group in first if group is not None}
        if len(groups) > 1 and sorted(map(repr, first)) == sorted(map(repr, second)):
            self.mistake(MistakeKind.GROUPS_CROSSED, one[0].node, test)

    # Loops.

    def _for(self, node: ast.For | ast.AsyncFor) -> str | None:
        values = self.now(self.eval(node.iter))
        items = (
            values.items
            if values.items is not None and 0 < len(values.items) <= 6 and values.kind is TracedKind.LIST
            else None
        )
        rounds = [self.now(v) for v in items] if items is not None else [None, None]
        left = None
        begin = len(self.log)
        self._methods(self, _SETTER, values, "=iterated", [Traced(made=node.iter)], {})
        for known in rounds:
            item = known if known is not None else self.item_of(values)
            self.store(node.target, item, node)
            self._own_batches.append(values.has("own-data") or (item.is_own and values.has("of-loader")))
            self._loader_depth.append(values.has("of-loader"))
            left = self._iteration(node.body)
            self._loader_depth.pop()
            self._own_batches.pop()
            if left == "return" and known is not None:
                break
        if self.log[begin:]:
            self._uneven(values, node.iter, self.log[begin:])
            self._methods(self, _SETTER, values, "=trained", [Traced(made=node.iter)], {})
        self.block(node.orelse)
        return left if left in ("return", "raise") else None

    def _uneven(self, values: Traced, node: ast.expr, sent: list[Communication]) -> None:
        if any(c.value.origins for c in self.state.conditions) or "join" in self.contexts:
            return
        here = [c for c in sent if c.group is None]
        if not here or not values.certain:
            return
        if DiffersBy.SET_ORDER in values.origins:
            self.mistake(MistakeKind.SET_ORDER, node, here[0].node)
        elif values.has("own-keys"):
            self.mistake(MistakeKind.KEYS_DIFFER, node, here[0].node)
        elif values.has("uneven"):
            self.mistake(MistakeKind.UNEVEN_LOOP, node, here[0].node)
        elif values.has("ragged") and values.kind in (TracedKind.LIST, TracedKind.TENSOR):
            self.mistake(MistakeKind.RAGGED_LOOP, node, here[0].node)

    def _iteration(self, body: list[ast.stmt]) -> str | None:
        """Execute a loop's body once, and see who leaves it before which communication."""
        depth = len(self.state.conditions)
        begin = len(self.log)
        self._loops.append((self.frame.number, []))
        self._last += 1
        self.turns.append(self._last)
        left = self.block(body)
        self.turns.pop()
        for how, value, test, module, at in self._loops.pop()[1]:
            after = self.log[at:] if how == "continue" else self.log[begin:]
            others = [c for c in self.state.conditions[:depth] if c.value.origins]
            world = [c for c in after if c.group is None]
            skipped = [c for c in after if c.operation == "submodule"]
            if skipped and value.is_own and "forward" in self.contexts:
                self.mistake_in(MistakeKind.FORWARD_RANDOM, module, test, skipped[0].node, how)
            if world and value.is_own and not others and "join" not in self.contexts:
                self.mistake_in(MistakeKind.DECIDED_ALONE, module, test, world[0].node, how)
        del self.state.conditions[depth:]
        return left

    def _while(self, node: ast.While) -> str | None:
        left = None
        begin = len(self.log)
        for _ in range(2):
            test = self.eval(node.test)
            if self.truth(test) is False:
                break
            left = self._iteration(node.body)
            if test.is_own and not self.differs_here() and any(c.group is None for c in self.log[begin:]):
                self.mistake(MistakeKind.DECIDED_ALONE, node.test, self.log[begin].node)
        test = self.eval(node.test)
        if test.is_own and not self.differs_here() and any(c.group is None for c in self.log[begin:]):
            self.mistake(MistakeKind.DECIDED_ALONE, node.test, self.log[begin].node)
        self.block(node.orelse)
        return left if left in ("return", "raise") else None

    # Other blocks.

    def _with(self, node: ast.With | ast.AsyncWith) -> str | None:
        entered: list[str] = []
        for item in node.items:
            value = self.now(self.eval(item.context_expr))
            words = [m for m in value.marks if m in _CONTEXTS]
            entered += words
            if item.optional_vars is not None:
                self.store(item.optional_vars, value, node)
        self.contexts += entered
        left = self.block(node.body)
        for word in entered:
            self.contexts.remove(word)
        return left

    def _try(self, node: ast.Try) -> str | None:
        left = self.block(node.body)
        begin = len(self.log)
        for handler in node.handlers:
            kept = self.state
            self.state = kept.fork()
            found = len(self.mistakes)
            self.block(handler.body)
            del self.mistakes[found:]
            self.state = kept
        del self.log[begin:]
        if left is None:
            left = self.block(node.orelse)
        return self.block(node.finalbody) or left

    def _global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.frame.outer_names.update(node.names)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.state.names.setdefault(self.frame.number, {}).pop(target.id, None)

    def _assert(self, node: ast.Assert) -> None:
        self.eval(node.test)

    # Expressions.

    def eval(self, node: ast.expr) -> Traced:
        """The value of an expression."""
        evaluate = _EXPRESSIONS.get(type(node))
        if evaluate is not None:
            value = self.now(evaluate(self, node))
            if value.origins & {DiffersBy.RANK, DiffersBy.DATA} or value.has("own-slice"):
                self.reads.add("rank")
            return value
        parts = [self.eval(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return derived(TracedKind.UNKNOWN, *parts) if parts else UNKNOWN

    def _constant(self, node: ast.Constant) -> Traced:
        return Traced(TracedKind.CONSTANT, certain=True, symbol=("constant", node.value), constant=node.value)

    def _name(self, node: ast.Name) -> Traced:
        if node.id == "__name__" and self.module is self._root:
            return Traced(TracedKind.CONSTANT, certain=True, constant="__main__")
        frame: Frame | None = self.frame
        while frame is not None:
            known = self.state.names.setdefault(frame.number, {})
            if node.id in known:
                return known[node.id]
            module = frame.module
            frame = self._owners.get(frame.outer) if frame.outer is not None else None
        home = self._modules.get(id(self.module))
        if home is not None and node.id in self.state.names.get(home, {}):
            return self.state.names[home][node.id]
        return self._imported(module, node)

    def _imported(self, module: Module, node: ast.expr) -> Traced:
        dotted = module.names.dotted(node)
        if dotted is None:
            return UNKNOWN
        base, _, name = dotted.rpartition(".")
        other = module.beside(base) if base else None
        if other is not None:
            number = self._module_frame(other)
            return self.state.names.get(number, {}).get(name, UNKNOWN)
        return Traced(
            TracedKind.EXTERNAL,
            certain=True,
            symbol=("external", module.names.of(node)),
            constant=module.names.of(node),
        )

    def _attribute(self, node: ast.Attribute) -> Traced:
        owner = self.eval(node.value)
        if owner.kind is TracedKind.EXTERNAL:
            value = self._imported(self.module, node)
            return (
                value
                if value.kind is not TracedKind.UNKNOWN
                else Traced(
                    TracedKind.EXTERNAL,
                    certain=True,
                    constant=f"{owner.constant}.{node.attr}",
                    symbol=("external", f"{owner.constant}.{node.attr}"),
                )
            )
        return self.attribute(owner, node.attr, node)

    def attribute(self, owner: Traced, name: str, node: ast.AST) -> Traced:
        """The attribute of a value: what was stored there, a method, or what the library knows."""
        if name in owner.fields:
            return owner.fields[name]
        if owner.kind in (TracedKind.OBJECT, TracedKind.MODULE, TracedKind.DATASET) and owner.constant is not None:
            found = self._class_attribute(owner, name)
            if found is not None:
                return found
        known = self._methods(self, _SETTER, owner, f".{name}", [], {})
        if known is not None:
            return known
        return Traced(
            TracedKind.METHOD,
            certain=owner.certain,
            constant=name,
            fields={"self": owner},
            origins=owner.origins,
            symbol=(owner.symbol, name) if owner.symbol is not None else None,
        )

    def _class_attribute(self, owner: Traced, name: str) -> Traced | None:
        method = self.method_of(owner, name)
        if method is not None:
            function = method.constant[1]
            if any(ast.unparse(d).endswith("property") for d in function.decorator_list):
                return self.call_function(method, [], {}, owner)
            static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
            return method if static else replace(method, fields={"self": owner})
        cls = owner.constant[1]
        for statement in cls.body:
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.target.id == name
            ):
                return replace(SAME, symbol=("class", id(cls), name))
            if isinstance(statement, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in statement.targets
            ):
                return self.eval(statement.value)
        return None

    def method_of(self, owner: Traced, name: str) -> Traced | None:
        """A method of the class of an object, as a function."""
        if not isinstance(owner.constant, tuple):
            return None
        module, cls, outer = owner.constant
        target = module.method(cls, name)
        return (
            Traced(
                TracedKind.FUNCTION,
                certain=True,
                constant=(target.module, target.function, self._home(target.module, outer)),
            )
            if target is not None
            else None
        )

    def _home(self, module: Module, outer: int) -> int:
        return self._modules.get(id(module), outer)

    def _call(self, node: ast.Call) -> Traced:
        func = self.eval(node.func)
        args: list[Traced] = []
        for argument in node.args:
            value = self.eval(argument.value if isinstance(argument, ast.Starred) else argument)
            if isinstance(argument, ast.Starred):
                parts = self.item_of(value) if "item" in value.fields else UNKNOWN
                args += list(value.items) if value.items is not None else [parts]
            else:
                args.append(value)
        kw = {k.arg: self.eval(k.value) for k in node.keywords if k.arg is not None}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.eval(keyword.value)
        return self.call(node, func, args, kw)

    def call(self, node: ast.Call, func: Traced, args: list[Traced], kw: dict[str, Traced]) -> Traced:
        """Call a value."""
        result: Traced | None = None
        if func.kind is TracedKind.FUNCTION and "self" in func.fields:
            self._methods(
                self,
                node,
                self.now(func.fields["self"]),
                f"!{node.func.attr if isinstance(node.func, ast.Attribute) else ''}",
                args,
                kw,
            )
        if func.kind is TracedKind.FUNCTION:
            return self.call_function(func, args, kw, func.fields.get("self"))
        if func.kind is TracedKind.CLASS:
            return self._methods(self, node, func, "(class)", args, kw) or UNKNOWN
        if func.kind is TracedKind.EXTERNAL:
            result = self._library(self, node, str(func.constant), args, kw)
        elif func.kind is TracedKind.METHOD:
            result = self._methods(self, node, self.now(func.fields["self"]), str(func.constant), args, kw)
        else:
            result = self._methods(self, node, func, "()", args, kw)
        if result is not None:
            return result
        self.forget([*args, *kw.values(), *([func.fields["self"]] if func.kind is TracedKind.METHOD else [])])
        return UNKNOWN

    def forget(self, values: list[Traced]) -> None:
        """An unknown function may have changed these values."""
        for value in values:
            present = self.now(value)
            if present.ref and present.kind in (
                TracedKind.TENSOR,
                TracedKind.LIST,
                TracedKind.DICT,
                TracedKind.OBJECT,
                TracedKind.GRADIENT,
            ):
                fields = {k: replace(v, certain=False) if not v.ref else v for k, v in present.fields.items()}
                self.change(present, certain=False, power=None, fields=fields)
            if present.kind in (
                TracedKind.MODULE,
                TracedKind.WRAPPER,
                TracedKind.PARAMETERS,
                TracedKind.OPTIMIZER,
            ) and (present.ref or present.of):
                self.state.obligations.pop(present.of or present.ref, None)
                self._methods(self, _SETTER, present, "=given", [], {})
            if present.kind is TracedKind.HANDLE and present.ref:
                self.change(present, marks=present.marks - {"unwaited"})

    def _binary(self, node: ast.BinOp) -> Traced:
        return self.binary(node.op, self.eval(node.left), self.eval(node.right), node)

    def binary(self, op: ast.operator, left: Traced, right: Traced, node: ast.AST) -> Traced:
        """Compute with two values; powers of the number of ranks add up."""
        tensors = {TracedKind.TENSOR, TracedKind.GRADIENT, TracedKind.PARAMETER}
        kind = (
            TracedKind.TENSOR
            if {left.kind, right.kind} & tensors
            else TracedKind.TEXT
            if TracedKind.TEXT in (left.kind, right.kind)
            else TracedKind.NUMBER
        )
        if kind is TracedKind.NUMBER and TracedKind.LIST in (left.kind, right.kind):
            kind = TracedKind.LIST
        symbol = (
            (type(op).__name__, left.symbol, right.symbol)
            if left.symbol is not None and right.symbol is not None
            else None
        )
        result = derived(kind, left, right, symbol=symbol)
        if kind is TracedKind.LIST:
            held = left if left.kind is TracedKind.LIST else right
            count = right if held is left else left
            length = {"length": count} if isinstance(op, ast.Mult) else {}
            return self.new(
                replace(held, fields={**held.fields, **length}, marks=held.marks | result.marks, items=None), node
            )
        result = replace(result, power=_power(op, left, right), marks=result.marks | _accumulated(op, left, right))
        if isinstance(op, ast.Mult) and (left.has("world") or right.has("world")):
            result = result.marked("multiple")
        if isinstance(op, ast.Div):
            self._divided(left, right, node)
            if right.kind is TracedKind.NUMBER and not {"world", "local world"} & right.marks:
                result = result.marked(*(left.marks & {"averaged", "summed"}))
        elif isinstance(op, ast.BitAnd | ast.BitOr):
            result = result.marked(*(left.marks & {"mask"}))
        if isinstance(op, ast.FloorDiv | ast.Div | ast.Mod) and {"world", "local world", "multiple"} & right.marks:
            result = result.without("dataset-length")
        if result.has("group-rank") and not _counts_within(op, left, right):
            result = result.without("group-rank")
        result = quantities.combined(self, op, left, right, result, node)
        return self.new(result, node) if kind is TracedKind.TENSOR else result

    def _divided(self, left: Traced, right: Traced, node: ast.AST) -> None:
        """A reduced tensor is divided by a number of ranks."""
        if right.has("world") and left.has("averaged") and left.power == Power():
            self.mistake(MistakeKind.AVERAGED_TWICE, node, left.made)
        elif self.knows_rank and right.has("local world") and left.has("summed") and left.power == Power(1, 0):
            self.mistake(MistakeKind.DIVIDED_BY_NODE, node, left.made)

    def _unary(self, node: ast.UnaryOp) -> Traced:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            if value.kind is TracedKind.CONSTANT and value.certain and not value.origins:
                return replace(value, constant=not value.constant, symbol=None)
            meaning = value.rank_is
            flipped = (meaning[0], meaning[1], not meaning[2]) if meaning is not None else None
            symbol = ("not", value.symbol) if value.symbol is not None else None
            return replace(derived(TracedKind.NUMBER, value), rank_is=flipped, symbol=symbol)
        return replace(
            derived(value.kind, value),
            power=value.power,
            symbol=("-", value.symbol) if value.symbol is not None else None,
        )

    def _boolean(self, node: ast.BoolOp) -> Traced:
        values = [self.eval(v) for v in node.values]
        is_and = isinstance(node.op, ast.And)
        known = [self.truth(v) for v in values]
        decisive = next((v for v, k in zip(values, known, strict=True) if k is not None and k is not is_and), None)
        if decisive is not None and all(k is not None for k in known[: values.index(decisive)]):
            return decisive
        left = [v for v, k in zip(values, known, strict=True) if k is None] or values[-1:]
        if len(left) == 1:
            return left[0]
        meaning = next((v.rank_is for v in left if v.rank_is is not None and v.rank_is[2] is is_and), None)
        result = derived(TracedKind.NUMBER, *left, symbol=tuple(v.symbol for v in left))
        sure = any(v.certain and v.origins for v in left) and is_and and meaning is not None
        return replace(result, rank_is=meaning, certain=result.certain or sure)

    def _compare_values(self, node: ast.Compare) -> Traced:
        values = [self.eval(node.left), *(self.eval(c) for c in node.comparators)]
        symbol = tuple(v.symbol for v in values) + tuple(type(o).__name__ for o in node.ops)
        result = derived(
            TracedKind.NUMBER, *values, symbol=symbol if all(v.symbol is not None for v in values) else None
        )
        if any(v.kind is TracedKind.TENSOR for v in values):
            result = replace(result, kind=TracedKind.TENSOR, trains=frozenset()).marked("mask")
        if len(values) != 2:
            return result
        one, other = values
        quantities.compared(self, node, values)
        if any(v.has("hashed") for v in values) and any(v.constant == "rank" for v in values):
            self.mistake(MistakeKind.HASH_OF_TEXT, node)
        op = node.ops[0]
        if isinstance(op, (ast.Is, ast.IsNot)) and other.symbol == ("constant", None):
            if one.kind is TracedKind.CONSTANT and one.certain and not one.origins:
                return Traced(
                    TracedKind.CONSTANT, certain=True, constant=(one.constant is None) is isinstance(op, ast.Is)
                )
            if one.certain and one.kind in _NEVER_NONE and not one.origins:
                return Traced(TracedKind.CONSTANT, certain=True, constant=isinstance(op, ast.IsNot))
            if DiffersBy.RANK not in one.origins:
                return replace(result, certain=False)
        if (
            one.kind is TracedKind.CONSTANT
            and other.kind is TracedKind.CONSTANT
            and result.certain
            and not result.origins
            and isinstance(op, (ast.Eq, ast.NotEq))
        ):
            return Traced(
                TracedKind.CONSTANT, certain=True, constant=(one.constant == other.constant) is isinstance(op, ast.Eq)
            )
        for side, against in ((one, other), (other, one)):
            name = (
                _IDENTITIES.get(side.constant)
                if isinstance(side.constant, str) and side.kind is TracedKind.NUMBER
                else None
            )
            if name is not None and isinstance(op, (ast.Eq, ast.NotEq)) and not against.origins:
                number = against.constant if against.kind is TracedKind.CONSTANT else against.symbol
                return replace(result, rank_is=(name, number, isinstance(op, ast.Eq)))
        return result

    def _conditional(self, node: ast.IfExp) -> Traced:
        test = self.eval(node.test)
        truth = self.truth(test)
        if truth is not None:
            return self.eval(node.body if truth else node.orelse)
        results: list[Traced] = []

        def side(part: ast.expr) -> None:
            results.append(self.eval(part))

        self.branch(test, node.test, lambda: side(node.body), lambda: side(node.orelse))
        result = joined(results[0], results[1], test)
        contexts = results[0].marks | results[1].marks
        if "no_sync" in contexts:
            word = "no_sync_but_last" if test.has("end") else "maybe_no_sync"
            return Traced(TracedKind.CONTEXT, marks=frozenset((word,)), symbol=test.symbol, made=node.test)
        if results[0].kind is TracedKind.LIST and results[1].kind is TracedKind.LIST:
            result = self.new(replace(result, kind=TracedKind.LIST), node)
        if results[0].has("uneven") or results[1].has("uneven"):
            return result
        if test.certain and DiffersBy.RANK in test.origins and "length-of-data" in results[0].marks | results[1].marks:
            result = result.marked("uneven")
        return result

    def _sequence(self, node: ast.List | ast.Tuple) -> Traced:
        values = [self.eval(e.value if isinstance(e, ast.Starred) else e) for e in node.elts]
        stars = any(isinstance(e, ast.Starred) for e in node.elts)
        whole = derived(TracedKind.LIST, *values)
        result = replace(whole, items=None if stars else tuple(values), certain=whole.certain or not values)
        if stars and values:
            result = replace(result, fields={"item": self.item_of(values[0])})
        symbol = tuple(v.symbol for v in values)
        return self.new(replace(result, symbol=symbol if all(s is not None for s in symbol) else None), node)

    def _set(self, node: ast.Set) -> Traced:
        values = [self.eval(e) for e in node.elts]
        texts = len(values) > 1 and all(isinstance(v.constant, str) for v in values)
        origins = frozenset((DiffersBy.SET_ORDER,)) if texts else frozenset[DiffersBy]()
        return Traced(TracedKind.SET, origins, certain=texts, items=None, made=node)

    def _dict(self, node: ast.Dict) -> Traced:
        fields: dict[str, Traced] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            entry = self.eval(value)
            fields["item"] = joined(fields["item"], entry, None) if "item" in fields else entry
            if isinstance(key, ast.Constant):
                fields[f"[{key.value!s}]"] = entry
        return self.new(Traced(TracedKind.DICT, certain=True, fields=fields), node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Traced:
        certain, marks = True, set[str]()
        length: Traced | None = None
        origins: frozenset[DiffersBy] = frozenset()
        begin = len(self.log)
        outer = dict(self.state.names.setdefault(self.frame.number, {}))
        whole: Traced | None = None
        source = UNKNOWN
        for generator in node.generators:
            source = self.eval(generator.iter)
            self.store(generator.target, self.item_of(source), node)
            length = source.fields.get("length")
            marks |= source.marks & {"uneven", "own-keys", "ragged"}
            if source.kind is TracedKind.PARAMETERS:
                whole = source
            for condition in generator.ifs:
                test = self.eval(condition)
                if test.is_own and DiffersBy.DATA in test.origins and not test.has("ragged"):
                    marks.add("uneven")
                elif test.certain and test.origins == {DiffersBy.RANK}:
                    marks.add("ragged")
        item = self.eval(node.elt)
        if self.log[begin:]:
            self._uneven(source, node.generators[0].iter, self.log[begin:])
        self.state.names[self.frame.number] = outer
        if whole is not None and item.kind is TracedKind.PARAMETER:
            return whole
        fields = {"item": item} | ({"length": length} if length is not None else {})
        certain = item.certain
        origins = item.origins
        return self.new(
            Traced(
                TracedKind.LIST,
                origins,
                certain,
                fields=fields,
                marks=frozenset(marks) | (item.marks & {"gathered"}),
                trains=item.trains,
                of=item.of,
            ),
            node,
        )

    def _dict_comprehension(self, node: ast.DictComp) -> Traced:
        outer = dict(self.state.names.setdefault(self.frame.number, {}))
        marks: frozenset[str] = frozenset()
        for generator in node.generators:
            source = self.eval(generator.iter)
            marks |= source.marks & {"uneven", "own-keys"}
            self.store(generator.target, self.item_of(source), node)
        item = self.eval(node.value)
        key = self.eval(node.key)
        self.state.names[self.frame.number] = outer
        fields = {"item": item, "(key)": key}
        return self.new(Traced(TracedKind.DICT, item.origins, item.certain, fields=fields, marks=marks), node)

    def _subscript(self, node: ast.Subscript) -> Traced:
        owner = self.eval(node.value)
        if isinstance(node.slice, ast.Slice):
            bounds = [self.eval(b) for b in (node.slice.lower, node.slice.upper, node.slice.step) if b is not None]
            known = self._methods(self, _SETTER, owner, "[:]", bounds, {})
            upper = self.eval(node.slice.upper) if node.slice.upper is not None else None
            result = known if known is not None else derived(owner.kind, owner, *bounds)
            result = replace(result, fields=owner.fields if owner.kind is TracedKind.LIST else result.fields)
            if any(b.certain and b.origins & {DiffersBy.RANK, DiffersBy.LOCAL_RANK} for b in bounds):
                origins = result.origins - {DiffersBy.RANK} | {DiffersBy.DATA}
                by_step = node.slice.step is not None and not (upper is not None and upper.has("multiple"))
                length = owner.fields.get("length")
                is_counted = owner.items is not None or (length is not None and length.kind is TracedKind.CONSTANT)
                ragged = {"ragged", "ragged-rows"} if by_step and not owner.has("cut") and not is_counted else set()
                result = replace(result, origins=origins, marks=result.marks | {"own-slice"} | ragged)
                if owner.certain and owner.has("own-order"):
                    self.mistake(MistakeKind.ORDER_DIFFERS, node, self.own_node(owner.made, node))
            elif upper is not None and upper.has("agreed"):
                result = result.without("uneven", "ragged", "ragged-rows")
            elif owner.has("ragged-rows"):
                result = result.marked("ragged-rows")
            elif upper is not None and upper.has("multiple"):
                result = result.marked("cut")
            return (
                self.new(replace(result, ref=0, items=None), node)
                if result.kind in (TracedKind.TENSOR, TracedKind.LIST)
                else result
            )
        index = self.eval(node.slice)
        keys = owner.fields.get("(key)") if owner.kind is TracedKind.DICT else None
        if keys is not None and keys.marks & _NAMES and index.marks & _NAMES and not keys.marks & index.marks & _NAMES:
            self.mistake(MistakeKind.NAMES_OF_WRAPPER, node)
        known = self._methods(self, _SETTER, owner, "[]", [index, Traced(TracedKind.CONSTANT, made=node)], {})
        if known is not None:
            return known
        if (
            isinstance(index.constant, int)
            and owner.items is not None
            and -len(owner.items) <= index.constant < len(owner.items)
        ):
            return owner.items[index.constant]
        named = owner.fields.get(f"[{index.constant}]") if index.kind is TracedKind.CONSTANT else None
        if named is not None:
            return named
        item = self.item_of(owner)
        if item.kind is TracedKind.GROUP and index.certain and DiffersBy.RANK in index.origins:
            return replace(item, origins=frozenset((DiffersBy.RANK,)), certain=True, ref=0)
        if owner.kind in (TracedKind.TENSOR, TracedKind.LIST, TracedKind.DATASET):
            taken = derived(item.kind, item, index)
            origins = (
                taken.origins - {DiffersBy.RANK} | {DiffersBy.DATA}
                if DiffersBy.RANK in index.origins
                else taken.origins
            )
            if index.kind is TracedKind.TENSOR and owner.kind is TracedKind.TENSOR:
                own = index.certain and DiffersBy.DATA in index.origins and owner.certain and index.has("mask")
                if own:
                    taken = taken.marked("uneven")
            return replace(item, origins=origins, certain=taken.certain, marks=item.marks | taken.marks, ref=0)
        if DiffersBy.RANK in index.origins and owner.certain:
            return replace(item, origins=item.origins | {DiffersBy.RANK})
        return item

    def _slice(self, node: ast.Slice) -> Traced:
        bounds = [self.eval(b) for b in (node.lower, node.upper, node.step) if b is not None]
        return derived(TracedKind.NUMBER, *bounds) if bounds else SAME

    def _joined_text(self, node: ast.JoinedStr) -> Traced:
        values = [self.eval(v.value if isinstance(v, ast.FormattedValue) else v) for v in node.values]
        symbols = tuple(v.symbol for v in values)
        if not any(DiffersBy.RANK in v.origins and v.constant == "rank" for v in values):
            for value in values:
                quantities.shown(self, value)
        return derived(
            TracedKind.TEXT, *values, symbol=("text", *symbols) if all(s is not None for s in symbols) else None
        )

    def _lambda(self, node: ast.Lambda) -> Traced:
        return Traced(TracedKind.FUNCTION, certain=True, constant=(self.module, node, self.frame.number))

    def _named(self, node: ast.NamedExpr) -> Traced:
        value = self.eval(node.value)
        self.store(node.target, value, node)
        return value

    def _yield(self, node: ast.Yield) -> Traced:
        self.frame.yielded.append(self.eval(node.value) if node.value is not None else NOTHING)
        return UNKNOWN

    def _yield_from(self, node: ast.YieldFrom) -> Traced:
        self.frame.yielded.append(self.item_of(self.eval(node.value)))
        return UNKNOWN


def _counts_within(op: ast.operator, left: Traced, right: Traced) -> bool:
    """Whether a rank of a group stays one: `1 - r`, `r + 1`, `(r + 1) % size`."""
    other = right if left.has("group-rank") else left
    return isinstance(op, ast.Mod) or (
        isinstance(op, ast.Add | ast.Sub) and (other.kind is TracedKind.CONSTANT or other.has("group-size"))
    )


def is_no_grad(decorator: ast.expr) -> bool:
    """Whether a decorator turns gradients off."""
    text = ast.unparse(decorator)
    return "no_grad" in text or "inference_mode" in text


def _power(op: ast.operator, left: Traced, right: Traced) -> Power | None:
    one = _factor(left)
    two = _factor(right)
    if one is None or two is None:
        return None
    if isinstance(op, ast.Mult):
        return Power(one.world + two.world, one.local + two.local)
    if isinstance(op, (ast.Div, ast.FloorDiv)):
        return Power(one.world - two.world, one.local - two.local)
    return one if one == two or right.kind is TracedKind.CONSTANT else two if left.kind is TracedKind.CONSTANT else None


def _factor(value: Traced) -> Power | None:
    if value.has("world"):
        return Power(1, 0)
    if value.has("local world"):
        return Power(0, 1)
    return value.power if value.certain or value.kind is TracedKind.TENSOR else None


def _accumulated(op: ast.operator, left: Traced, right: Traced) -> frozenset[str]:
    """Own contributions that are added to what was reduced already."""
    is_sum = isinstance(op, ast.Add) and left.has("reduced") and right.certain and right.origins & OWN
    return frozenset(("reduced-and-added",)) if is_sum and not right.has("reduced") else frozenset()


_NAMES = frozenset(("name-of-wrapper", "name-of-module"))
_CONTEXTS = ("no_grad", "no_sync", "join", "throws", "maybe_no_sync", "grad", "meta")
_GLOBAL_RANK = re.compile(r"""get_rank\(|get_world_size\(|["'](?:RANK|WORLD_SIZE|SLURM_PROCID)["']""")
_SETTER = ast.Call(func=ast.Name(id="", ctx=ast.Load()), args=[], keywords=[])
_IDENTITIES = {"rank": DiffersBy.RANK, "local rank": DiffersBy.LOCAL_RANK}
_ON_ONE_RANK = {
    "forward of a sharded module": MistakeKind.SHARDED_ON_ONE_RANK,
    "new_group": MistakeKind.GROUP_ON_ONE_RANK,
}
_DATA_CALLS = (
    "dist.all_reduce",
    "dist.all_gather",
    "dist.broadcast",
    "dist.all_gather_object",
    "dist.all_gather_into_tensor",
)
_NEVER_NONE = (
    TracedKind.NUMBER,
    TracedKind.TEXT,
    TracedKind.TENSOR,
    TracedKind.LIST,
    TracedKind.DICT,
    TracedKind.MODULE,
    TracedKind.WRAPPER,
    TracedKind.GROUP,
    TracedKind.OBJECT,
    TracedKind.HANDLE,
    TracedKind.SAMPLER,
    TracedKind.LOADER,
    TracedKind.OPTIMIZER,
)


def _statements() -> dict[type, Callable[[Executor, Any], str | None]]:
    def quiet(execute: Callable[[Executor, Any], None]) -> Callable[[Executor, Any], str | None]:
        def run(executor: Executor, node: Any) -> str | None:
            execute(executor, node)
            return None

        return run

    e = Executor
    plain: dict[type, Callable[[Executor, Any], None]] = {
        ast.FunctionDef: e._function,
        ast.AsyncFunctionDef: e._function,
        ast.ClassDef: e._class,
        ast.Expr: e._expression,
        ast.Assign: e._assign,
        ast.AnnAssign: e._annotated,
        ast.AugAssign: e._augmented,
        ast.Global: e._global,
        ast.Nonlocal: e._global,
        ast.Delete: e._delete,
        ast.Assert: e._assert,
    }
    return {
        **{kind: quiet(execute) for kind, execute in plain.items()},
        ast.Return: e._return,
        ast.If: e._if,
        ast.For: e._for,
        ast.AsyncFor: e._for,
        ast.While: e._while,
        ast.With: e._with,
        ast.AsyncWith: e._with,
        ast.Try: e._try,
        ast.Break: lambda *_: "break",
        ast.Continue: lambda *_: "continue",
        ast.Raise: lambda *_: "raise",
    }


_STATEMENTS = _statements()
_EXPRESSIONS: dict[type, Callable[[Executor, Any], Traced]] = {
    ast.Constant: Executor._constant,
    ast.Name: Executor._name,
    ast.Attribute: Executor._attribute,
    ast.Call: Executor._call,
    ast.BinOp: Executor._binary,
    ast.UnaryOp: Executor._unary,
    ast.BoolOp: Executor._boolean,
    ast.Compare: Executor._compare_values,
    ast.IfExp: Executor._conditional,
    ast.List: Executor._sequence,
    ast.Tuple: Executor._sequence,
    ast.Set: Executor._set,
    ast.Dict: Executor._dict,
    ast.ListComp: Executor._comprehension,
    ast.GeneratorExp: Executor._comprehension,
    ast.SetComp: Executor._comprehension,
    ast.DictComp: Executor._dict_comprehension,
    ast.Subscript: Executor._subscript,
    ast.Slice: Executor._slice,
    ast.JoinedStr: Executor._joined_text,
    ast.Lambda: Executor._lambda,
    ast.NamedExpr: Executor._named,
    ast.Yield: Executor._yield,
    ast.YieldFrom: Executor._yield_from,
}
