"""Where ranks part: the collectives of a rehearsal compared, and the place that is to blame for the difference."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.simulation.entry_points import entry_points, rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import call_reach, is_default_group_collective, is_rank_independent
from ddpdoctor.scripts.simulation.simulate import simulate
from ddpdoctor.scripts.simulation.subgroups import groups_of
from ddpdoctor.scripts.simulation.trace import BranchTest, EarlyExit, Event, RankTrace, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner

__all__ = ["Divergence", "DivergenceKind", "divergences"]


class DivergenceKind:
    """What the ranks disagree about."""

    BRANCH = "branch"
    EXIT = "exit"
    ORDER = "order"
    GROUP = "group"


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """One place where the ways of two ranks part: `at` is the call or the early exit, `event` the collective.

    `other` is what the other ranks do instead, None when nothing. `test` is the condition; `data`: it looks at a rank's
    own data. `sure`: no other condition, that nobody knows, stands between it and the early exit.
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
    """Everything that the ranks of the imagined job disagree about, each place once."""
    found: dict[tuple[str, ast.AST], Divergence] = {}
    for root in entry_points(module, call_reach(module)):
        contexts = rank_contexts(module, root)
        asked = False
        for run in simulate(module, root, contexts, call_reach(module), is_rank_independent=is_rank_independent):
            asked |= run.depends_on_data
            for each in _compare(run):
                if not any(_mirrors(each, other) for other in found.values()):
                    found.setdefault((each.kind, each.at), each)
        for data in (True, False) if asked else ():
            for run in simulate(module, root, contexts, call_reach(module), data=data):
                for each in _compare(run):
                    if not any(at is each.at for _, at in found):
                        found[(each.kind, each.at)] = each
    return tuple(d for d in found.values() if d.test.module is module)


def _mirrors(one: Divergence, two: Divergence) -> bool:
    """Whether two pairs of ranks disagree about the same two calls, seen from either side."""
    return (
        one.other is not None
        and one.other.call is two.event.call
        and two.other is not None
        and two.other.call is one.event.call
    )


def _compare(run: Simulation) -> Iterator[Divergence]:
    if run.is_open or any(t.raised for t in run.traces) or len(run.traces) < 2:
        return
    own = (inner(s) for s in getattr(run.root, "body", ()) if not isinstance(s, (ast.FunctionDef, ast.ClassDef)))
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for nodes in own for node in nodes):
        return  # what happens in between stands elsewhere
    if any(_asks_again(run, left) for t in run.traces for left in t.early_exits):
        return
    first, second = run.traces[:2]
    for pair in [(first, t) for t in run.traces[1:]] + [(second, t) for t in run.traces[2:]]:
        yield from _pair(run, *pair)
    for members, is_theirs in groups_of(run):
        for other in members[1:]:
            yield from _pair(run, members[0], other, is_theirs)


def _asks_again(run: Simulation, left: EarlyExit) -> bool:
    """Whether a rank only begins an endless loop's next turn: the others wait until it comes by, as for an input."""
    loop = left.loops[-1] if left.how == "continue" and left.loops else None
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    return endless and bool(run.divergent(left.reasons))


def _pair(
    run: Simulation, one: RankTrace, two: RankTrace, counts: Callable[[Event], bool] | None = None
) -> Iterator[Divergence]:
    counts = counts or is_default_group_collective
    a = [e for e in one.events if counts(e)]
    b = [e for e in two.events if counts(e)]
    if [e.name for e in a] == [e.name for e in b]:
        yield from _turned_away(run, one, b)
        yield from _turned_away(run, two, a)
        yield from (
            d
            for x, y in zip(a, b, strict=True)
            if _are_other_groups(x, y)
            for d in _blamed(run, DivergenceKind.GROUP, x, None)
        )
        return
    if Counter(e.name for e in a) == Counter(e.name for e in b):
        at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x.name != y.name)
        yield from _blamed(run, DivergenceKind.ORDER, a[at], b[at])
        return
    more = [(one, two, _extra(run, a, b)), (two, one, _extra(run, b, a))]
    both = [m for m in more if m[2]]
    if len(both) == 2 and _shared(run, both[0][2], both[1][2]):
        yield from _blamed(run, DivergenceKind.ORDER, both[0][2][0], both[1][2][0])
        return
    for _, lacking, extra in both:
        yield from _alone(run, lacking, extra)
    common = [[e for e in each if e not in extra] for each, (_, _, extra) in zip((a, b), more, strict=True)]
    swapped = next(((x, y) for x, y in zip(*common, strict=False) if x.name != y.name), None)
    if swapped is not None:
        yield from _blamed(run, DivergenceKind.ORDER, *swapped)


def _are_other_groups(one: Event, two: Event) -> bool:
    """Whether two ranks make groups of other ranks as the same group of their count."""
    members = [e.read(e.argument(0, "ranks")) for e in (one, two)] if one.name == "dist.new_group" else []
    told = all(isinstance(m, list) and all(type(r) is int for r in m) for m in members)
    return bool(members) and told and members[0] != members[1]


def _turned_away(run: Simulation, gone: RankTrace, others: list[Event]) -> Iterator[Divergence]:
    """A rank leaves a loop in whose next turn the others communicate again."""
    for left in gone.early_exits:
        divergent = run.divergent(left.reasons)
        loop = left.loops[-1] if left.loops else None
        if (
            loop is None
            or not divergent
            or left.how not in ("break", "return")
            or not _is_inside(divergent[-1], loop, left.node)
        ):
            continue
        again = next((e for e in others if loop in e.loops), None)
        if again is not None:
            sure = left.reasons[-1] is divergent[-1]
            yield Divergence(DivergenceKind.EXIT, left.node, again, None, divergent[-1], run.data is not None, sure)


def _is_inside(test: BranchTest, loop: ast.AST, node: ast.AST) -> bool:
    """Whether a condition and the statement that it guards stand in a loop of one function."""
    index = test.module.index
    return index.parents.get(node) is not None and loop in (p for p, _ in index.enclosing(test.node))


def _alone(run: Simulation, lacking: RankTrace, extra: list[Event]) -> Iterator[Divergence]:
    """Collectives that only one of the two ranks does: it entered a branch, or the other one left early."""
    if _may_hide(run, lacking):
        return
    for event in sorted(extra, key=lambda e: e.name == "forward"):
        if (
            run.divergent(event.tests)
            and not _is_of_another_model(run, event, extra)
            and not _is_up_to_callers(run, event)
        ):
            kind = DivergenceKind.GROUP if event.name.startswith("dist.new_") else DivergenceKind.BRANCH
            yield from _blamed(run, kind, event, None)
    left = next((x for x in lacking.early_exits if run.divergent(x.reasons)), None)
    plain = next((e for e in extra if not run.divergent(e.tests)), None)
    if left is not None and plain is not None:
        test = run.divergent(left.reasons)[-1]
        sure = left.reasons[-1] is test
        yield Divergence(DivergenceKind.EXIT, left.node, plain, None, test, run.data is not None, sure)


def _is_of_another_model(run: Simulation, event: Event, extra: list[Event]) -> bool:
    """A backward pass in a branch in which the wrapped model makes no forward pass."""
    test = run.divergent(event.tests)[-1].node
    forward = any(e.name == "forward" and any(t.node is test for t in e.tests) for e in extra)
    return event.name == "backward" and not forward


def _is_up_to_callers(run: Simulation, event: Event) -> bool:
    """Whether a parameter decides, in a function that the ranks of the branch call, and the text does not tell how."""
    branch = run.divergent(event.tests)[0]
    for test in event.tests:
        if test.chosen and test.depth > branch.depth and isinstance(test.node, ast.If):
            function = test.module.index.function_of(test.node)
            given = (
                {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} if function is not None else set()
            )
            if any(isinstance(n, ast.Name) and n.id in given for n in ast.walk(test.node.test)):
                return True
    return False


def _extra(run: Simulation, a: list[Event], b: list[Event]) -> list[Event]:
    """The events of `a` that `b` lacks: those outside of conditions that part the ranks are matched first."""
    left = Counter(e.name for e in b)
    lacking = []
    for event in sorted(a, key=lambda e: bool(run.divergent(e.tests))):
        if left[event.name] > 0:
            left[event.name] -= 1
        else:
            lacking.append(event)
    return lacking


def _shared(run: Simulation, one: list[Event], two: list[Event]) -> bool:
    """Whether both ranks do something of their own in the two arms of one condition."""
    nodes = {t.node for e in one for t in run.divergent(e.tests)}
    return any(t.node in nodes for e in two for t in run.divergent(e.tests))


def _blamed(run: Simulation, kind: str, event: Event, other: Event | None) -> Iterator[Divergence]:
    divergent = run.divergent(event.tests)
    if not divergent and other is not None:
        event, other, divergent = other, event, run.divergent(other.tests)
    if divergent:
        test = divergent[-1]
        at = event.chain[test.depth]
        if test.module.parameter_called(at) is not None and len(event.chain) > test.depth + 1:
            at = event.chain[test.depth + 1]  # in a decorator: what it wraps is to blame, not its own call of it
        yield Divergence(kind, at, event, other, test, run.data is not None)


def _may_hide(simulation: Simulation, trace: RankTrace) -> bool:
    """Whether the rank that lacks a collective called something in its own branch that might contain it."""
    return any(simulation.divergent(tests) and assumptions.may_communicate(name) for name, tests in trace.unknown_calls)
