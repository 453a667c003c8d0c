"""ENV006: WORLD_SIZE is not the number of nodes times the processes per node."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.submitted import at_mark, numbered_ranks, option_mark, source_of

COUNTS_ITSELF = ("torchrun", "deepspeed", "ray-train")
"""Launchers that add up the processes of all nodes: with them another sum only means that the nodes differ."""


@cause("ENV006", "world-size-not-node-product", Severity.WARNING, scope=CauseScope.PROCESS, repairs=("rank-variable",))
def world_size_not_node_product(environ: Environ) -> Iterator[Finding]:
    """WORLD_SIZE is not the number of nodes times the processes of this node.

    ## Why it matters
    This is correct only if the nodes run different numbers of processes. Otherwise one node was started with old
    numbers, and the job waits in init_process_group for ranks that are never started.

    ## Fix
    Make --nnodes and --nproc-per-node the same on every node; WORLD_SIZE is then their product.

    ## Example

        WORLD_SIZE=16, but LOCAL_WORLD_SIZE=4 on 2 nodes makes 8

        # before
        export WORLD_SIZE=16 LOCAL_WORLD_SIZE=4 NNODES=2
        # after
        export WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 NNODES=2
    """
    launcher = environ.launcher
    if launcher is not None and launcher.counts_pods:
        return
    name = environ.local_size_name
    world, local, nodes = environ.integer("WORLD_SIZE"), environ.integer(name), environ.nnodes
    if world is None or local is None or world < 1 or local < 1:
        return
    nodes = nodes or 1  # if the number of nodes is unknown, this node's ranks must still fit into the world
    if world == nodes * local or (environ.nnodes is None and world > local):
        return
    is_possible = nodes > 1 and world >= local + nodes - 1
    counted = launcher is not None and launcher.name in COUNTS_ITSELF
    reading = ", unless the nodes differ" if is_possible else ""
    count = "1 node" if nodes == 1 else f"{nodes} nodes"
    yield Finding(
        f"WORLD_SIZE={world}, but {name}={local} on {count} makes {nodes * local}{reading}",
        (
            Evidence("environ.variables.WORLD_SIZE", str(world), str(nodes * local)),
            Evidence(f"environ.variables.{name}", str(local)),
        ),
        severity=Severity.NOTE if is_possible and counted else None,
    )


@world_size_not_node_product.look
def of_tasks(submission: Submission) -> Iterator[Finding]:
    """The ranks that a job file starts are fewer than its WORLD_SIZE, and their numbers begin at 0."""
    for step, ranks, size in numbered_ranks(submission):
        is_alone = sum(len(each.tasks) for each in submission.steps) == len(ranks)
        if size > len(ranks) and is_alone and sorted(ranks) == list(range(len(ranks))):
            task = step.tasks[0]
            text = f"WORLD_SIZE is {size}, but {source_of(task)} starts {len(ranks)} ranks"
            mark, label = task.set_at.get("WORLD_SIZE") or option_mark(submission, task), f"{len(ranks)} ranks start"
            yield at_mark(submission, mark, text, seen=f"WORLD_SIZE={size}", expected=str(len(ranks)), label=label)
