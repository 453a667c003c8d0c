"""SCRIPT032: loops that end earlier on some ranks than on others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.script_questions import each_rank, last_value
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES
from ddpdoctor.scripts.syntax.classes import only_assignment
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

_LISTINGS = ("glob.glob", "os.listdir", "os.scandir", "glob.iglob")


@cause("SCRIPT032", "uneven-inputs", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def uneven_inputs(script: Script) -> Iterator[Finding]:
    """The ranks have different numbers of batches.

    ## Why it matters
    At the end of the epoch the shorter ranks leave the loop. The others wait for them, or a gradient of one rank is
    silently summed into a metric of another.

    ## Fix
    Give all ranks equally many: cut to `len(items) // world_size * world_size`, a DistributedSampler with drop_last,
    or `with
    Join([ddp]):`.
    """
    for module in modules(script):
        if module.calls("Join") or any(f"{name}.join()" in module.text for name in module.wrapped):
            continue
        for each in (n for n in module.index.parents if isinstance(n, ast.While)):
            if _communicates(module, each) and _counts_apart(module, each):
                yield point(
                    module,
                    each.test,
                    f"{code(module, each.test)} ends this loop earlier on some ranks: they leave the others waiting in "
                    "its collectives; expected equally many turns on all ranks",
                    "the same number of turns on all ranks",
                )
        for loop in (n for n in module.index.parents if isinstance(n, ast.For)):
            if not _communicates(module, loop):
                continue
            reason, certain = _unequal(module, loop.iter)
            if reason:
                yield point(
                    module,
                    loop.iter,
                    f"{code(module, loop.iter)} {reason}: ranks that end earlier leave the others waiting in the "
                    "collectives of this "
                    "loop; expected equally many turns on all ranks",
                    "the same number of turns on all ranks",
                    edits=_cut(module, loop.iter),
                ).if_certain(certain)


def _cut(module: Module, node: ast.expr) -> tuple[Edit, ...]:
    """`items[rank::size]` of as many items as all ranks get alike."""
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
    """Whether a counter that begins alike on all ranks runs up to a number that each rank has for itself."""
    test = loop.test
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or len(test.ops) != 1:
        return False
    counter = test.left.id
    ends = each_rank(module, test.comparators[0], trusting=True)
    bound = module.names.bindings(counter, module.index.scope(test.left))
    begins = [b.value for b in bound[1] if isinstance(b.at, ast.Assign)] if bound is not None else []
    counts = any(isinstance(n, ast.AugAssign) and ast.unparse(n.target) == counter for n in inner(loop))
    alike = bool(begins) and all(isinstance(b, ast.Constant) for b in begins)
    return counts and alike and all(type(e) is int for e in ends) and len({*map(repr, ends)}) > 1


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
    """Why a loop has different numbers of turns on the ranks, and whether that is certain."""
    found = each_rank(module, node)
    if all(isinstance(f, (list, tuple)) for f in found):
        lengths = [len(f) for f in found if isinstance(f, (list, tuple))]
        return (f"gives the ranks {', '.join(map(str, lengths))} turns", True) if len(set(lengths)) > 1 else ("", False)
    if isinstance(node, ast.Call) and module.names.of(node.func) == "range":
        turns = _turns(module, node)
        if len(set(turns)) > 1:
            return f"gives the ranks {', '.join(map(str, turns))} turns", True
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
            return "lists what this rank alone has", False
    if isinstance(source, ast.Attribute):
        source = only_assignment(module, source) or source
    if isinstance(source, ast.ListComp) and _takes_turns(module, source):
        return "may give the first ranks one turn more", False
    part = source.slice if isinstance(source, ast.Subscript) else None
    if isinstance(part, ast.Slice) and part.step is not None and part.lower is not None and part.upper is None:
        lower = each_rank(module, part.lower, trusting=True)
        even = isinstance(source, ast.Subscript) and _is_cut(module, source.value)
        if lower == [p.rank for p in TWO_NODES] and not even:
            return "may give the first ranks one turn more", False
    return "", False


def _returned(module: Module, source: ast.expr) -> ast.expr | None:
    """The one expression that a function of this file returns where it is called."""
    target = module.target(source) if isinstance(source, ast.Call) else None
    if not isinstance(source, ast.Call) or target is None or target.module is not module:
        return None
    if any(_is_cut(module, given) for given in source.args):
        return None
    returns = [n.value for statement in target.function.body for n in inner(statement) if isinstance(n, ast.Return)]
    return returns[0] if len(returns) == 1 else None


def _takes_turns(module: Module, node: ast.ListComp) -> bool:
    """`[x for i, x in enumerate(items) if i % world_size == rank]`."""
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


def _turns(module: Module, node: ast.Call) -> list[int]:
    """How many turns a range has on each rank, where all its bounds are known."""
    bounds = [each_rank(module, a, trusting=True) for a in node.args]
    if not bounds or not all(type(b) is int for each in bounds for b in each):
        return []
    rows = zip(*bounds, strict=True)
    return [len(range(*row)) for row in rows if len(row) < 3 or row[2] != 0]


def _is_cut(module: Module, node: ast.expr) -> bool:
    """Whether the divided sequence was cut to a multiple before."""
    if not isinstance(node, ast.Name):
        return "//" in ast.unparse(node)
    bound = module.names.bindings(node.id, module.index.scope(node))
    texts = [ast.unparse(b.value) for b in (bound[1] if bound is not None else []) if b.value is not None]
    return any("//" in t or "%" in t or ":" in t for t in texts)
