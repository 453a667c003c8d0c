"""SCRIPT551 and SCRIPT552: one collective, called with different roots or reduce operations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.call_arguments import ROOTS, ArgumentKind, unlike_arguments
from ddpdoctor.scripts.simulation.joint_paths import program_simulations
from ddpdoctor.scripts.simulation.subgroups import group_members
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT551", "collective-root-differs", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_root_differs(script: Script) -> Iterator[Finding]:
    """The ranks name different roots for one collective, or a root outside of its group.

    ## Why it matters
    With `src=rank` every rank sends and none receives: each keeps its own value, or waits until the timeout. A root
    outside of the group fails with `ValueError: Group … is not registered` or `Global rank 0 is not part of group`.

    ## Fix
    Pass the same global rank on all ranks, one that is a member of the group.

    `group_src` and `group_dst` take the rank within the group (torch 2.6 and later).

    ## Example
        # before
        dist.broadcast(seed, src=rank)

        # after
        dist.broadcast(seed, src=0)

    ## Source
    torch/distributed/distributed_c10d.py (broadcast, get_group_rank).
    """
    for module in modules(script):
        for unlike in unlike_arguments(module):
            if unlike.kind == ArgumentKind.ROOT:
                word = ROOTS[unlike.event.name][1]
                yield point(
                    module,
                    unlike.event.call,
                    f"{word}={code(module, unlike.node, 30)} is {unlike.values[0]} on rank {unlike.rank} and "
                    f"{unlike.values[1]} on rank {unlike.other_rank}",
                    f"the same {word} on all ranks",
                    label="every rank names a different root",
                    fix=f"Pass the same {word} on all ranks.",
                )
        yield from _outside(module)


def _outside(module: Module) -> Iterator[Finding]:
    """Roots that are not members of the group that the file creates for the call."""
    reported: set[ast.Call] = set()
    for run in program_simulations(module):
        for event in (e for t in run.traces for e in t.events):
            root, members = _root(event), _members(event)
            if root is None or members is None or root in members or event.call in reported:
                continue
            reported.add(event.call)
            word = ROOTS[event.name][1]
            yield point(
                module,
                event.call,
                f"{word}={root} is not a member of the group {list(members)}",
                f"{word} in {list(members)}",
                label="the root is a global rank",
                fix=f"Pass the global rank of a member as {word}.",
            )


def _root(event: Event) -> int | None:
    place = ROOTS.get(event.name)
    root = event.read(event.argument(*place)) if place is not None else None
    return root if type(root) is int else None


def _members(event: Event) -> tuple[int, ...] | None:
    """The members of the group that a collective gets, if the file creates it with known ranks."""
    made = event.read(event.argument(GROUP_POSITION.get(event.name), "group"))
    return group_members(event, made) if isinstance(made, CallResult) and made.name == "dist.new_group" else None


@cause("SCRIPT552", "reduce-operation-differs", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def reduce_operation_differs(script: Script) -> Iterator[Finding]:
    """The ranks reduce with different operations.

    ## Why it matters
    Nothing compares the operations: each rank combines the values in its own way and has another result, without any
    error. Values and branches that depend on it differ from then on.

    ## Fix
    Pass the same `op` on all ranks.

    ## Example
        # before
        dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)

        # after
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    """
    for module in modules(script):
        for unlike in unlike_arguments(module):
            if unlike.kind == ArgumentKind.OPERATION:
                names = [str(v).rpartition(".")[2] for v in unlike.values]
                yield point(
                    module,
                    unlike.event.call,
                    f"rank {unlike.rank} reduces with {names[0]}, rank {unlike.other_rank} with {names[1]}",
                    "the same operation on all ranks",
                    label="the results differ between ranks",
                )


@collective_root_differs.look
def other_root(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One collective with different roots."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.ROOT, label="the root differs between ranks")


@reduce_operation_differs.look
def other_operator(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One reduction with different operators."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.REDUCTION, label="the operator differs between ranks")
