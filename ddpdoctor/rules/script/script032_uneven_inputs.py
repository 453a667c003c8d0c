"""SCRIPT032: loops that have fewer iterations on some ranks than on others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.script_questions import each_rank, last_value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, RankContext, one_node
from ddpdoctor.scripts.syntax.classes import only_assignment
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_LISTINGS = ("glob.glob", "os.listdir", "os.scandir", "glob.iglob")


@cause("SCRIPT032", "uneven-inputs", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.UNEVEN_LOOP, MistakeKind.RAGGED_LOOP)
def uneven_inputs(script: Script) -> Iterator[Finding]:
    """The ranks have different numbers of batches.

    ## Why it matters
    At the end of the epoch the ranks with fewer batches leave the loop, and the others wait for them. Or a gradient
    of one rank is silently summed into a metric of another.

    ## Fix
    Give all ranks the same number of iterations: `items[: len(items) // world_size * world_size]`.

    A DistributedSampler with `drop_last=True`, or `with Join([ddp]):`, works as well.

    ## Example
        # before
        for item in items[rank::world_size]:
            loss = ddp(item)
            loss.backward()
        # the ranks with one item more wait in the backward pass until the timeout

        # after
        even = items[: len(items) // world_size * world_size]
        for item in even[rank::world_size]:
            loss = ddp(item)
            loss.backward()
    """
    for module in modules(script):
        if module.calls("Join") or any(f"{name}.join()" in module.text for name in module.wrapped):
            continue
        for loop in (n for n in module.index.parents if isinstance(n, ast.While)):
            if _communicates(module, loop) and _counts_apart(module, loop):
                yield point(
                    module,
                    loop.test,
                    f"`{code(module, loop.test)}` ends this loop earlier on some ranks",
                    "the same number of iterations on all ranks",
                    label="the others wait in its collectives: deadlock",
                )
        for for_loop in (n for n in module.index.parents if isinstance(n, ast.For)):
            if not _communicates(module, for_loop):
                continue
            reason, certain = _unequal(module, for_loop.iter)
            if reason:
                yield point(
                    module,
                    for_loop.iter,
                    f"{code(module, for_loop.iter)} {reason}",
                    "the same number of iterations on all ranks",
                    label="ranks that finish first leave: deadlock",
                    edits=_cut(module, for_loop.iter),
                ).if_certain(certain)


def _cut(module: Module, node: ast.expr) -> tuple[Edit, ...]:
    """Cut the items of `items[rank::size]`, so that all ranks get the same number."""
    made = last_value(module, node)
    if isinstance(node, ast.Call) and len(node.args) == 3 and module.names.of(node.func) == "range":
        stop, size = code(module, node.args[1]), code(module, node.args[2])
        starts = each_rank(module, node.args[0], trusting=True) == [p.rank for p in TWO_NODES]
        by_world = set(each_rank(module, node.args[2], trusting=True)) == {len(TWO_NODES)}
        return (replace(module, node.args[1], f"{stop} // {size} * {size}"),) if starts and by_world else ()
    part = made.slice if isinstance(made, ast.Subscript) else None
    if not isinstance(made, ast.Subscript) or not isinstance(part, ast.Slice) or part.step is None:
        return ()
    if not isinstance(made.value, ast.Name):
        return ()
    items, size = made.value.id, code(module, part.step)
    return (replace(module, made.value, f"{items}[: len({items}) // {size} * {size}]"),)


def _counts_apart(module: Module, loop: ast.While) -> bool:
    """Whether a counter starts with the same value on all ranks and runs to a number that differs between ranks."""
    test = loop.test
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or len(test.ops) != 1:
        return False
    counter = test.left.id
    ends = each_rank(module, test.comparators[0], trusting=True)
    bound = module.names.bindings(counter, module.index.scope(test.left))
    begins = [b.value for b in bound[1] if isinstance(b.at, ast.Assign)] if bound is not None else []
    counts = any(isinstance(n, ast.AugAssign) and ast.unparse(n.target) == counter for n in inner(loop))
    starts_equal = bool(begins) and all(isinstance(b, ast.Constant) for b in begins)
    return counts and starts_equal and all(type(e) is int for e in ends) and len({*map(repr, ends)}) > 1


def _communicates(module: Module, loop: ast.For | ast.While) -> bool:
    for node in inner(loop):
        if isinstance(node, ast.Call):
            name = module.names.of(node.func)
            if (name in COLLECTIVES and name != "DDP") or (
                module.wraps and getattr(node.func, "attr", "") == "backward"
            ):
                return True
    return False


def _unequal(module: Module, node: ast.expr) -> tuple[str, bool]:
    """Why a loop has different numbers of iterations on the ranks, and whether that is certain."""
    values = each_rank(module, node, _world_of(module, node))
    if all(isinstance(f, (list, tuple)) for f in values):
        lengths = [len(f) for f in values if isinstance(f, (list, tuple))]
        return (
            (f"has {', '.join(map(str, lengths))} items on ranks 0 to {len(lengths) - 1}", True)
            if len(set(lengths)) > 1
            else ("", False)
        )
    if isinstance(node, ast.Call) and module.names.of(node.func) == "range":
        iterations = _iterations(module, node)
        if len(set(iterations)) > 1:
            return f"has {', '.join(map(str, iterations))} iterations on ranks 0 to {len(iterations) - 1}", True
    source = node
    if isinstance(node, ast.Name):
        bound = module.names.bindings(node.id, module.index.scope(node))
        if bound is None or len(bound[1]) != 1 or bound[1][0].value is None:
            return "", False
        source = bound[1][0].value
    if (
        isinstance(source, ast.Call)
        and getattr(source.func, "id", "") in ("list", "enumerate", "sorted", "tqdm")
        and source.args
    ):
        source = source.args[0]
    source = _returned(module, source) or source
    if isinstance(source, ast.Call) and module.names.of(source.func) in _LISTINGS and source.args:
        folder = each_rank(module, source.args[0], trusting=True)
        if any(f != folder[0] for f in folder[1:]):
            return "lists different files on each rank", False
    if isinstance(source, ast.Attribute):
        source = only_assignment(module, source) or source
    if isinstance(source, ast.ListComp) and _is_round_robin(module, source):
        return "may give the first ranks one more item", False
    part = source.slice if isinstance(source, ast.Subscript) else None
    if isinstance(part, ast.Slice) and part.step is not None and part.lower is not None and part.upper is None:
        lower = each_rank(module, part.lower, trusting=True)
        even = isinstance(source, ast.Subscript) and _is_cut(module, source.value)
        if lower == [p.rank for p in TWO_NODES] and not even:
            return "may give the first ranks one more item", False
    return "", False


def _world_of(module: Module, node: ast.expr) -> tuple[RankContext, ...]:
    """The ranks that divide the items: as many as the literal step of `items[rank::2]`, otherwise those of two nodes."""
    made = last_value(module, node)
    part = made.slice if isinstance(made, ast.Subscript) else None
    step = part.step if isinstance(part, ast.Slice) else None
    count = step.value if isinstance(step, ast.Constant) else None
    return one_node(count) if isinstance(count, int) and 2 <= count <= 64 else TWO_NODES


def _returned(module: Module, source: ast.expr) -> ast.expr | None:
    """The only expression that a function of this file returns, for a call of it."""
    target = module.target(source) if isinstance(source, ast.Call) else None
    if not isinstance(source, ast.Call) or target is None or target.module is not module:
        return None
    if any(_is_cut(module, given) for given in source.args):
        return None
    returns = [n.value for statement in target.function.body for n in inner(statement) if isinstance(n, ast.Return)]
    return returns[0] if len(returns) == 1 else None


def _is_round_robin(module: Module, node: ast.ListComp) -> bool:
    """Whether it is `[x for i, x in enumerate(items) if i % world_size == rank]`."""
    tests = node.generators[0].ifs if len(node.generators) == 1 else []
    test = tests[0] if len(tests) == 1 else None
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.BinOp) or len(test.ops) != 1:
        return False
    counted = isinstance(test.left.op, ast.Mod) and isinstance(test.ops[0], ast.Eq)
    size = each_rank(module, test.left.right, trusting=True)
    turn = each_rank(module, test.comparators[0], trusting=True)
    items = node.generators[0].iter
    even = _is_cut(module, items.args[0] if isinstance(items, ast.Call) and items.args else items)
    return (
        counted and not even and set(map(repr, size)) == {str(len(TWO_NODES))} and turn == [p.rank for p in TWO_NODES]
    )


def _iterations(module: Module, node: ast.Call) -> list[int]:
    """The number of iterations of a range on each rank, if all its bounds are known."""
    bounds = [each_rank(module, a, trusting=True) for a in node.args]
    if not bounds or not all(type(b) is int for values in bounds for b in values):
        return []
    rows = zip(*bounds, strict=True)
    return [len(range(*row)) for row in rows if len(row) < 3 or row[2] != 0]


def _is_cut(module: Module, node: ast.expr) -> bool:
    """Whether the sequence was cut to a multiple of the world size before."""
    if not isinstance(node, ast.Name):
        return "//" in ast.unparse(node)
    bound = module.names.bindings(node.id, module.index.scope(node))
    texts = [ast.unparse(b.value) for b in (bound[1] if bound is not None else []) if b.value is not None]
    return any("//" in t or "%" in t or ":" in t for t in texts)


@uneven_inputs.look
def left_the_loop(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank left a loop that the others continue."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.UNEVEN, label="the other ranks wait in the next iteration")


@uneven_inputs.look
def uneven_loaders(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Loaders with different numbers of batches, whose ends the rehearsal did not reach."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNEVEN_LOADERS,
        lambda o, who: f"{who}: {o.values['least']} batches per epoch; other ranks: {o.values['most']}",
        label="ranks with fewer batches leave the loop first",
        expected="as many batches on all ranks",
        severity=Severity.WARNING,
    )
