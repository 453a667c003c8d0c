"""SCRIPT597: an address, port or rank with which the processes of one job cannot find each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.script_questions import argument, each_rank, is_test
from ddpdoctor.rules.script.variables import sets
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_DRAWS = ("random.randint", "random.randrange", "random.choice", "numpy.random.randint", "os.getpid", "time.time")


@cause("SCRIPT597", "rendezvous-differs-by-rank", Severity.ERROR)
@with_histories(MistakeKind.PORT_OF_PROCESS)
def rendezvous_differs_by_rank(script: Script) -> Iterator[Finding]:
    """The ranks join at different addresses, or their ranks are not 0 to world_size - 1.

    ## Why it matters
    Each rank waits at another address, or rank 0 does not exist: `Timed out after 1801 seconds waiting for clients.
    1/4 clients joined.`

    ## Fix
    Give all ranks the same address and port, and ranks from 0 to world_size - 1.

    ## Example
        # before
        os.environ["MASTER_PORT"] = str(29500 + rank)
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        # Timed out after 1801 seconds waiting for clients. 1/4 clients joined.

        # after
        os.environ["MASTER_PORT"] = "29500"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    """
    for module in modules(script):
        if is_test(module) or not module.calls("dist.init_process_group"):
            continue
        yield from _addresses(module)
        for call in module.calls("dist.init_process_group"):
            yield from _method(module, call)
            yield from _rank(module, call)
            yield from _backend(module, call)
        for call in module.calls("dist.PrefixStore"):
            prefix = argument(call, 0, "prefix")
            values = _values(module, prefix) if prefix is not None else None
            if prefix is not None and values is not None:
                yield point(
                    module,
                    prefix,
                    f"the prefix of the store differs between ranks: {values[0]} and {values[1]}",
                    "the same prefix on all ranks",
                    label="each rank reads and writes different keys",
                    fix="Pass the same prefix on all ranks.",
                )


def _addresses(module: Module) -> Iterator[Finding]:
    for setting in sets(module):
        if setting.name not in _ADDRESS:
            continue
        values = _values(module, setting.given)
        drawn = _drawn(module, setting.given) if not _in_parent(module, setting.node) else ""
        if values is not None or drawn:
            why = (
                f"{values[0]} on rank 0 and {values[1]} on rank 1" if values is not None else f"{drawn}() on each rank"
            )
            yield point(
                module,
                setting.given,
                f"{setting.name} differs between ranks: {why}",
                f"the same {setting.name} on all ranks",
                label="the ranks join at different addresses",
                fix=f"Set the same {setting.name} on all ranks.",
            )


def _values(module: Module, node: ast.expr) -> tuple[object, object] | None:
    """The values on the first two ranks of a node, if they are known and differ."""
    places = rank_contexts(module, module.index.function_of(node))
    values = each_rank(module, node, places, trusting=True)
    is_known = len(values) > 1 and all(isinstance(v, (str, int)) for v in values)
    return (values[0], values[1]) if is_known and values[0] != values[1] else None


def _drawn(module: Module, node: ast.expr) -> str:
    """The function that draws a random value on each process, "" if there is none."""
    seeded = any("seed" in getattr(c.func, "attr", "") for c in module.index.calls)
    names = [module.names.of(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)]
    return next((name for name in names if name in _DRAWS), "") if not seeded else ""


def _in_parent(module: Module, node: ast.AST) -> bool:
    """Whether a statement runs once, in the process that starts the others, or may run for one process only."""
    function = module.index.function_of(node)
    if not module.spawns:
        under = (p for p, child in module.index.enclosing(node) if isinstance(p, ast.If) and child is not p.test)
        return any("__name__" not in ast.unparse(p.test) for p in under)
    return not any(s.function is function for s in module.spawns)


def _method(module: Module, call: ast.Call) -> Iterator[Finding]:
    method = argument(call, 1, "init_method")
    values = _values(module, method) if method is not None else None
    if method is not None and values is not None and all(isinstance(v, str) for v in values):
        yield point(
            module,
            method,
            f"init_method differs between ranks: {values[0]} and {values[1]}",
            "the same init_method on all ranks",
            label="the ranks join at different addresses",
            fix="Pass the same init_method on all ranks.",
        )


def _backend(module: Module, call: ast.Call) -> Iterator[Finding]:
    backend = argument(call, 0, "backend")
    values = _values(module, backend) if backend is not None else None
    if backend is not None and values is not None and all(isinstance(v, str) for v in values):
        yield point(
            module,
            backend,
            f"the backend differs between ranks: {values[0]} on rank 0 and {values[1]} on rank 1",
            "the same backend on all ranks",
            label="the ranks cannot communicate",
            fix="Pass the same backend on all ranks.",
        )


def _rank(module: Module, call: ast.Call) -> Iterator[Finding]:
    """`rank=rank + 1`: ranks that are not 0 to world_size - 1."""
    rank, size = argument(call, None, "rank"), argument(call, None, "world_size")
    if not isinstance(rank, ast.BinOp) or size is None:
        return
    places = rank_contexts(module, module.index.function_of(call))
    ranks, sizes = (each_rank(module, n, places, trusting=True) for n in (rank, size))
    known = [r for r in ranks if type(r) is int]
    if len(known) < len(ranks) or Unknown.VARIES in sizes or not all(type(s) is int for s in sizes):
        return
    world = sizes[0]
    if (
        isinstance(world, int)
        and world == len(places)
        and sorted(known) != list(range(world))
        and len(set(known)) == world
    ):
        yield point(
            module,
            rank,
            f"rank={code(module, rank, 30)} gives ranks {min(known)} to {max(known)} in a world of {world}",
            f"ranks 0 to {world - 1}",
            label="rank 0 never joins" if 0 not in known else "beyond the world size",
            fix="Pass ranks from 0 to world_size - 1.",
            edits=_without_offset(module, rank, known),
        )


def _without_offset(module: Module, rank: ast.BinOp, ranks: list[int]) -> tuple[Edit, ...]:
    is_next = isinstance(rank.op, ast.Add) and isinstance(rank.right, ast.Constant) and min(ranks) == rank.right.value
    return (replace(module, rank, code(module, rank.left, 100)),) if is_next else ()


@rendezvous_differs_by_rank.look
def join_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Addresses, ports or world sizes that differ between ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.JOINS_DIFFER,
        lambda o, who: f"{o.values['what']} differs between ranks: {o.values['values']}",
        label="the ranks never join each other",
        expected="the same value on all ranks",
    )


@rendezvous_differs_by_rank.look
def rank_outside_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank that is not in its world."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.RANK_OUTSIDE,
        lambda o, who: f"a process joins as rank {o.values['rank']} of a world of {o.values['size']}",
        label="no such rank in this world",
        expected="ranks from 0 to the world size minus 1",
    )
