"""ENV007: two sources of the rank."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause

TASK_LAUNCHERS = ("srun", "openmpi", "mpich", "mvapich2", "jsrun")
"""Launchers that number their tasks in variables of their own and leave RANK to the user."""


@cause("ENV007", "rank-sources-disagree", Severity.WARNING, scope=CauseScope.PROCESS)
def rank_sources_disagree(environ: Environ) -> Iterator[Finding]:
    """RANK or WORLD_SIZE contradicts the numbers of the launcher that started this task.

    ## Why it matters
    torch reads RANK and WORLD_SIZE; Lightning, accelerate and deepspeed look at the launcher's own variables as well. One
    part of the job then believes in one rank and another part in another: two ranks 0, twice the same data, or a wait
    for a rank that nobody is.

    ## Fix
    Inside every task set RANK, LOCAL_RANK and WORLD_SIZE from the launcher's variables, or unset those that were exported
    before it.
    """
    launcher = environ.launcher
    if launcher is None or launcher.name not in TASK_LAUNCHERS:
        return
    rank, world = environ.integer("RANK"), environ.integer("WORLD_SIZE")
    task, tasks = environ.rank, environ.world_size
    if rank is None or task is None or _is_one_of_several(rank, world, task, tasks):
        return
    rank_name, world_name = launcher.rank[0], next((n for n in launcher.world_size if environ.has(n)), "")
    if rank != task:
        alone = world == 1 and rank == 0  # every task a job of its own: odd, but it runs
        yield Finding(
            f"RANK={rank}, but {launcher.title} says {rank_name}={task}",
            (
                Evidence("environ.variables.RANK", str(rank), str(task)),
                Evidence(f"environ.variables.{rank_name}", str(task)),
            ),
            fix=f"Inside every task: export RANK=${rank_name}, or unset RANK before the launcher.",
            fix_command=f"export RANK=${rank_name} WORLD_SIZE=${world_name}" if world_name else None,
            severity=Severity.NOTE if alone else None,
        )
    elif world is not None and tasks and world != tasks and not _counts_nodes(environ, world, tasks):
        yield Finding(
            f"WORLD_SIZE={world}, but {launcher.title} started {tasks} tasks ({world_name}={tasks})",
            (Evidence("environ.variables.WORLD_SIZE", str(world), str(tasks)),),
            fix=f"Inside every task: export WORLD_SIZE=${world_name}, or unset WORLD_SIZE before the launcher.",
            fix_command=f"export RANK=${rank_name} WORLD_SIZE=${world_name}",
        )


def _is_one_of_several(rank: int, world: int | None, task: int, tasks: int | None) -> bool:
    """A process that the task started itself, one of `world / tasks`: its rank is rightly another than the task's."""
    if world is None or not tasks or world <= tasks or world % tasks:
        return False
    return rank // (world // tasks) == task


def _counts_nodes(environ: Environ, world: int, tasks: int) -> bool:
    """One task a node that is about to start several ranks: its RANK is a node rank, WORLD_SIZE counts what it will start."""
    return world > tasks and world % tasks == 0 and not environ.has("LOCAL_RANK") and tasks == environ.nnodes
