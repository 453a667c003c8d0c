"""Where ranks diverge: compares the collectives of a simulation, and finds the place that causes the difference."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.simulation.entry_points import entry_points, rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import (
    COMMUNICATION,
    is_default_group_collective,
    is_rank_independent,
)
from ddpdoctor.scripts.simulation.simulate import simulate
from ddpdoctor.scripts.simulation.subgroups import groups_of
from ddpdoctor.scripts.simulation.trace import BranchTest, EarlyExit, Event, RankTrace, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner

__all__ = ["Divergence", "DivergenceKind", "divergences"]


class DivergenceKind:
    """What the ranks do differently."""

    BRANCH = "branch"
    EXIT = "exit"
    ORDER = "order"
    GROUP = "group"


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """A place where two ranks diverge: `at` is the call or the early exit, `event` the collective.

    `other` is what the other ranks do instead, None if nothing. `test` is the condition; `data`: it depends on the data of
    the rank. `sure`: no other undetermined condition is between it and the early exit.
    """

    kind: str
    at: ast.AST
    event: Event
    other: Event | None
    test: BranchTest
    data: bool
    sure: bool = True


@lru_cache(maxsize=64)
def divergences(module: Module) -> tuple[Divergence, ...]:
    """All places where the ranks of the simulated job diverge, each once."""
    by_place: dict[tuple[str, ast.AST], Divergence] = {}
    for root in entry_points(module, COMMUNICATION):
        contexts = rank_contexts(module, root)
        depends_on_data = False
        for simulation in simulate(module, root, contexts, COMMUNICATION, is_rank_independent=is_rank_independent):
            depends_on_data |= simulation.depends_on_data
            for divergence in _compare(simulation):
                if not any(_is_counterpart(divergence, other) for other in by_place.values()):
                    by_place.setdefault((divergence.kind, divergence.at), divergence)
        for data in (True, False) if depends_on_data else ():
            for simulation in simulate(module, root, contexts, COMMUNICATION, data=data):
                for divergence in _compare(simulation):
                    if not any(node is divergence.at for _, node in by_place):
                        by_place[divergence.kind, divergence.at] = divergence
    return tuple(d for d in by_place.values() if d.test.module is module)


def _is_counterpart(one: Divergence, two: Divergence) -> bool:
    """Whether two pairs of ranks diverge at the same two calls, with the sides swapped."""
    return (
        one.other is not None
        and one.other.call is two.event.call
        and two.other is not None
        and two.other.call is one.event.call
    )


def _compare(simulation: Simulation) -> Iterator[Divergence]:
    """Compare pairs of ranks, and within each group its members."""
    if simulation.is_open or any(t.raised for t in simulation.traces) or len(simulation.traces) < 2:
        return
    if _is_generator(simulation.root):
        return  # its callers decide what happens between its yields
    if any(_polls(simulation, early_exit) for t in simulation.traces for early_exit in t.early_exits):
        return
    first, second, *rest = simulation.traces
    for pair in [(first, second), *((first, t) for t in rest), *((second, t) for t in rest)]:
        yield from _compare_pair(simulation, *pair, is_default_group_collective)
    for members, is_of_group in groups_of(simulation):
        for other in members[1:]:
            yield from _compare_pair(simulation, members[0], other, is_of_group)


def _is_generator(root: ast.AST) -> bool:
    own = (inner(s) for s in getattr(root, "body", ()) if not isinstance(s, (ast.FunctionDef, ast.ClassDef)))
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for nodes in own for node in nodes)


def _polls(simulation: Simulation, early_exit: EarlyExit) -> bool:
    """Whether a rank only starts the next iteration of an endless loop: the others wait for it, as for input."""
    loop = early_exit.loops[-1] if early_exit.how == "continue" and early_exit.loops else None
    is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    return is_endless and bool(simulation.divergent(early_exit.reasons))


def _compare_pair(
    simulation: Simulation, one: RankTrace, two: RankTrace, is_compared: Callable[[Event], bool]
) -> Iterator[Divergence]:
    a = [e for e in one.events if is_compared(e)]
    b = [e for e in two.events if is_compared(e)]
    if [e.name for e in a] == [e.name for e in b]:
        yield from _left_loop(simulation, one, b)
        yield from _left_loop(simulation, two, a)
        for x, y in zip(a, b, strict=True):
            if _create_different_groups(x, y):
                yield from _at_test(simulation, DivergenceKind.GROUP, x, None)
        return
    if Counter(e.name for e in a) == Counter(e.name for e in b):
        x, y = next((x, y) for x, y in zip(a, b, strict=True) if x.name != y.name)
        yield from _at_test(simulation, DivergenceKind.ORDER, x, y)
        return
    extra_a, extra_b = _extra(simulation, a, b), _extra(simulation, b, a)
    if extra_a and extra_b and _are_two_arms(simulation, extra_a, extra_b):
        yield from _at_test(simulation, DivergenceKind.ORDER, extra_a[0], extra_b[0])
        return
    for trace, extra in ((two, extra_a), (one, extra_b)):
        if extra:
            yield from _lacking(simulation, trace, extra)
    common = zip((e for e in a if e not in extra_a), (e for e in b if e not in extra_b), strict=False)
    swapped = next(((x, y) for x, y in common if x.name != y.name), None)
    if swapped is not None:
        yield from _at_test(simulation, DivergenceKind.ORDER, *swapped)


def _create_different_groups(one: Event, two: Event) -> bool:
    """Whether two ranks create groups with different ranks in one call."""
    if one.name != "dist.new_group":
        return False
    members = [e.read(e.argument(0, "ranks")) for e in (one, two)]
    is_known = all(isinstance(m, list) and all(type(r) is int for r in m) for m in members)
    return is_known and members[0] != members[1]


def _left_loop(simulation: Simulation, left: RankTrace, others: list[Event]) -> Iterator[Divergence]:
    """A rank leaves a loop in whose next iteration the others communicate again."""
    for early_exit in left.early_exits:
        tests = simulation.divergent(early_exit.reasons)
        loop = early_exit.loops[-1] if early_exit.loops else None
        if loop is None or not tests or early_exit.how not in ("break", "return"):
            continue
        if not _is_inside(tests[-1], loop, early_exit.node):
            continue
        again = next((e for e in others if loop in e.loops), None)
        if again is not None:
            yield _at_exit(simulation, early_exit, again, tests[-1])


def _is_inside(test: BranchTest, loop: ast.AST, node: ast.AST) -> bool:
    """Whether a condition and the statement that it guards are in a loop of one function."""
    index = test.module.index
    return index.parents.get(node) is not None and loop in (p for p, _ in index.enclosing(test.node))


def _lacking(simulation: Simulation, trace: RankTrace, extra: list[Event]) -> Iterator[Divergence]:
    """Collectives that only one of the two ranks calls: it took a branch, or the other one left early."""
    if _may_hide(simulation, trace):
        return
    for event in sorted(extra, key=lambda e: e.name == "forward"):
        is_divergent = bool(simulation.divergent(event.tests))
        if (
            is_divergent
            and not _is_of_another_model(simulation, event, extra)
            and not _depends_on_caller(simulation, event)
        ):
            kind = DivergenceKind.GROUP if event.name.startswith("dist.new_") else DivergenceKind.BRANCH
            yield from _at_test(simulation, kind, event, None)
    early_exit = next((x for x in trace.early_exits if simulation.divergent(x.reasons)), None)
    unconditional = next((e for e in extra if not simulation.divergent(e.tests)), None)
    if early_exit is not None and unconditional is not None:
        yield _at_exit(simulation, early_exit, unconditional, simulation.divergent(early_exit.reasons)[-1])


def _is_of_another_model(simulation: Simulation, event: Event, extra: list[Event]) -> bool:
    """A backward pass in a branch in which the wrapped model makes no forward pass."""
    test = simulation.divergent(event.tests)[-1].node
    has_forward = any(e.name == "forward" and any(t.node is test for t in e.tests) for e in extra)
    return event.name == "backward" and not has_forward


def _depends_on_caller(simulation: Simulation, event: Event) -> bool:
    """Whether an unknown parameter decides, in a function that the ranks of the branch call."""
    branch = simulation.divergent(event.tests)[0]
    for test in event.tests:
        if test.chosen and test.depth > branch.depth and isinstance(test.node, ast.If):
            function = test.module.index.function_of(test.node)
            arguments = ast.walk(function.args) if function is not None else ()
            parameters = {a.arg for a in arguments if isinstance(a, ast.arg)}
            if any(isinstance(n, ast.Name) and n.id in parameters for n in ast.walk(test.node.test)):
                return True
    return False


def _extra(simulation: Simulation, a: list[Event], b: list[Event]) -> list[Event]:
    """The events of `a` that `b` lacks: those outside divergent conditions are matched first."""
    unmatched = Counter(e.name for e in b)
    extra_events = []
    for event in sorted(a, key=lambda e: bool(simulation.divergent(e.tests))):
        if unmatched[event.name] > 0:
            unmatched[event.name] -= 1
        else:
            extra_events.append(event)
    return extra_events


def _are_two_arms(simulation: Simulation, one: list[Event], two: list[Event]) -> bool:
    """Whether both ranks do something different in the two arms of one condition."""
    nodes = {t.node for e in one for t in simulation.divergent(e.tests)}
    return any(t.node in nodes for e in two for t in simulation.divergent(e.tests))


def _at_exit(simulation: Simulation, early_exit: EarlyExit, event: Event, test: BranchTest) -> Divergence:
    """The divergence at an early exit before a collective that the other ranks call."""
    sure = early_exit.reasons[-1] is test
    return Divergence(DivergenceKind.EXIT, early_exit.node, event, None, test, simulation.data is not None, sure)


def _at_test(simulation: Simulation, kind: str, event: Event, other: Event | None) -> Iterator[Divergence]:
    """The divergence at the call under the innermost divergent condition, if there is one."""
    tests = simulation.divergent(event.tests)
    if not tests and other is not None:
        event, other, tests = other, event, simulation.divergent(other.tests)
    if tests:
        test = tests[-1]
        call = event.chain[test.depth]
        if test.module.parameter_called(call) is not None and len(event.chain) > test.depth + 1:
            call = event.chain[
                test.depth + 1
            ]  # in a decorator: the cause is in the decorated function, not in the call of it
        yield Divergence(kind, call, event, other, test, simulation.data is not None)


def _may_hide(simulation: Simulation, trace: RankTrace) -> bool:
    """Whether the rank that lacks a collective called something in its own branch that might contain it."""
    return any(simulation.divergent(tests) and assumptions.may_communicate(name) for name, tests in trace.unknown_calls)
