"""Entry points: where all ranks begin to execute a file together, and the simulated job that does so."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, RankContext, one_node
from ddpdoctor.scripts.simulation.communication_reach import CallReach
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.node_cache import cached_per_node
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["entry_points", "program_entry_points", "rank_contexts"]


def entry_points(module: Module, reach: CallReach) -> list[Function | ast.Module]:
    """Where all ranks begin together: the program itself, what it spawns, and functions that the file never calls."""
    spawned = {s.function for s in module.spawns}
    candidates = [f for f in module.index.functions if f in spawned or f not in module.callers]
    return _relevant(module, reach, candidates)


def program_entry_points(module: Module, reach: CallReach) -> list[Function | ast.Module]:
    """The entry points that every rank certainly executes: the module level of the program and what it spawns."""
    spawned = {s.function for s in module.spawns}
    return _relevant(module, reach, [f for f in module.index.functions if f in spawned])


def _relevant(module: Module, reach: CallReach, functions: list[Function]) -> list[Function | ast.Module]:
    """The functions that reach communication, and the module's own level if it does."""
    relevant: list[Function | ast.Module] = [
        f for f in functions if f.name not in ("__enter__", "__exit__") and reach.function(module, f)
    ]
    own = (s for s in module.tree.body if not isinstance(s, (ast.FunctionDef, ast.ClassDef)))
    return [*relevant, module.tree] if any(reach.statement(module, s) for s in own) else relevant


def rank_contexts(module: Module, root: Function | ast.Module | None = None) -> tuple[RankContext, ...]:
    """The simulated job for an entry point: two nodes, or one node with as many ranks as the source says."""
    return _rank_contexts(module, root)


@cached_per_node
def _rank_contexts(module: Module, root: Function | ast.Module | None) -> tuple[RankContext, ...]:
    spawned = [s for s in module.spawns if root is None or s.function is root or isinstance(root, ast.Module)]
    is_spawned = bool(spawned) and not isinstance(root, ast.Module)
    count = _literal_world(module)
    if count is None:
        counts = [RankEvaluator(module, one_node(4)[0]).value(s.count) for s in spawned if s.count is not None]
        count = next((c for c in counts if isinstance(c, int) and 2 <= c <= 8), None)
        if count is None and is_spawned:
            count = 4
    return one_node(count, spawned=is_spawned) if count is not None else TWO_NODES


def _literal_world(module: Module) -> int | None:
    """A world size from 2 to 8 that the source fixes."""
    given = [k.value for c in module.calls("dist.init_process_group") for k in c.keywords if k.arg == "world_size"]
    sizes = {v for g in given if isinstance(v := RankEvaluator(module, TWO_NODES[0]).value(g), int) and 2 <= v <= 8}
    others = [RankEvaluator(module, one_node(8)[0]).value(g) for g in given]
    return sizes.pop() if len(sizes) == 1 and all(v in tuple(sizes) for v in others) else None
