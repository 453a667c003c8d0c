"""SCRIPT009: a rank or world size in the call that the environment contradicts."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import point, without_argument
from ddpdoctor.rules.script.script010_to_012_014_init_process_group import INIT
from ddpdoctor.rules.script.script_questions import argument, each_rank, start_of
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, one_node
from ddpdoctor.scripts.syntax.module import modules


@cause("SCRIPT009", "world-size-argument-differs", Severity.ERROR)
def world_size_argument_differs(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """init_process_group is given a rank or a world size that contradicts the environment.

    ## Why it matters
    The argument wins over RANK and WORLD_SIZE without a word. Ranks that are told different worlds, or the same rank
    twice, wait for each other: `Timed out after 1801 seconds waiting for clients. 1/4 clients joined.`

    ## Fix
    Leave rank and world_size out of the call: a launcher sets both.
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
            told = _contradiction(worlds, ranks, started, is_fixed)
            if told:
                named = [a for a in (rank, world) if a is not None and a not in call.args]
                certain = start is not None and (start.nodes != 1 or started is not None)
                yield point(
                    module,
                    world if "world" in told.split(":")[0] else rank or world,
                    f"{told}; expected the launcher's rank and world size",
                    "init_process_group(backend) under a launcher",
                    edits=without_argument(module, call, *named) if named else (),
                ).if_certain(certain)


def _contradiction(worlds: list[object], ranks: list[object], started: int | None, is_fixed: bool) -> str:
    """What is wrong with rank and world_size on the ranks of two nodes with two GPUs each."""
    size = worlds[0]
    if type(size) is int and size > 1 and started is not None and size != started:
        return f"world_size={size} is written into the script, the launch line starts {started} ranks: they wait for each other"
    if not ranks or not all(type(r) is int for r in ranks) or not all(type(w) is int for w in worlds):
        return ""
    per_node, local = [p.job.local_world_size for p in TWO_NODES], [p.local_rank for p in TWO_NODES]
    if worlds == per_node and not is_fixed and ranks == [p.rank for p in TWO_NODES]:
        return "the world size counts the GPUs of one node, the rank counts all nodes: a second node has ranks beyond the world"
    if worlds == [p.job.world_size for p in TWO_NODES] and ranks == local:
        return (
            "the rank is the local rank: on more than one node it is taken twice while the world waits for the others"
        )
    return ""
