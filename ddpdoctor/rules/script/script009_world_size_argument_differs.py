"""SCRIPT009: a rank or world size in the call that contradicts the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import point, without_argument
from ddpdoctor.rules.script.script010_to_012_014_init_process_group import INIT
from ddpdoctor.rules.script.script_questions import argument, each_rank, start_of
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, one_node
from ddpdoctor.scripts.syntax.module import modules


class _Contradiction(NamedTuple):
    """What is wrong with rank and world_size; `is_of_world`: the caret belongs to world_size."""

    message: str
    label: str
    is_of_world: bool = True


@cause("SCRIPT009", "world-size-argument-differs", Severity.ERROR)
def world_size_argument_differs(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """init_process_group gets a rank or a world size that contradicts the environment.

    ## Why it matters
    The arguments silently override RANK and WORLD_SIZE. Ranks with different world sizes, or with the same rank
    twice, wait for each other: `Timed out after 1801 seconds waiting for clients. 1/4 clients joined.`

    ## Fix
    Leave rank and world_size out of the call: the launcher sets both.

    ## Example
        # before
        # torchrun --nproc-per-node=2 train.py
        dist.init_process_group("gloo", rank=rank, world_size=4)
        # Timed out after 1801 seconds waiting for clients. 2/4 clients joined.

        # after
        dist.init_process_group("gloo")
    """
    for module in modules(script):
        start = start_of(module, launch)
        for call in module.calls(INIT):
            rank, world = argument(call, None, "rank"), argument(call, None, "world_size")
            if module.spawns or world is None:
                continue
            worlds, ranks = each_rank(module, world), each_rank(module, rank) if rank is not None else []
            is_fixed = worlds[0] == each_rank(module, world, one_node(8))[0]
            started = start.world if start is not None and start.gives_ranks and is_fixed else None
            problem = _contradiction(worlds, ranks, started, is_fixed)
            on_one_node = start is not None and start.nodes == 1 and started is None
            if problem is not None and not on_one_node:
                named = [a for a in (rank, world) if a is not None and a not in call.args]
                certain = start is not None and (start.nodes != 1 or started is not None)
                yield point(
                    module,
                    world if problem.is_of_world else rank or world,
                    problem.message,
                    "init_process_group(backend) under a launcher",
                    label=problem.label,
                    edits=without_argument(module, call, *named) if named else (),
                ).if_certain(certain)


def _contradiction(
    worlds: list[object], ranks: list[object], started: int | None, is_fixed: bool
) -> _Contradiction | None:
    """What is wrong with rank and world_size on the ranks of two nodes with two GPUs each."""
    size = worlds[0]
    if type(size) is int and size > 1 and started is not None and size != started:
        return _Contradiction(
            f"world_size={size}, but the launch line starts {started} ranks", "the ranks wait for each other"
        )
    if not ranks or not all(type(r) is int for r in ranks) or not all(type(w) is int for w in worlds):
        return None
    per_node, local = [p.job.local_world_size for p in TWO_NODES], [p.local_rank for p in TWO_NODES]
    if worlds == per_node and not is_fixed and ranks == [p.rank for p in TWO_NODES]:
        return _Contradiction(
            "world_size counts the GPUs of one node, but rank counts all nodes",
            "a second node has ranks beyond world_size",
        )
    if worlds == [p.job.world_size for p in TWO_NODES] and ranks == local:
        return _Contradiction(
            "rank is the local rank, but world_size counts all nodes",
            "a second node repeats these ranks",
            is_of_world=False,
        )
    return None
