"""ENV007: RANK or WORLD_SIZE contradicts the launcher's own variables."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause

TASK_LAUNCHERS = ("srun", "openmpi", "mpich", "mvapich2", "jsrun")
"""Launchers that number their tasks in their own variables and do not set RANK."""


@cause("ENV007", "rank-sources-disagree", Severity.WARNING, scope=CauseScope.PROCESS)
def rank_sources_disagree(environ: Environ) -> Iterator[Finding]:
    """RANK or WORLD_SIZE contradicts the numbers of the launcher that started this task.

    ## Why it matters
    torch reads RANK and WORLD_SIZE; Lightning, accelerate, and deepspeed read the launcher's variables as well. Two
    parts of the job then use different ranks: two ranks 0, the same data twice, or a wait for a rank that no
    process has.

    ## Fix
    Set RANK, LOCAL_RANK, and WORLD_SIZE inside every task from the launcher's variables, or unset those that were
    exported before it.

    ## Example

        RANK=0, but Slurm (srun) sets SLURM_PROCID=3

        # before: exported once, so every task gets rank 0
        export RANK=0 WORLD_SIZE=4
        srun -n 4 python train.py

        # after: each task computes its own
        srun -n 4 bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID python train.py'
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
        alone = world == 1 and rank == 0  # every task is its own job: unusual, but it runs
        yield Finding(
            f"RANK={rank}, but {launcher.title} sets {rank_name}={task}",
            (
                Evidence("environ.variables.RANK", str(rank), str(task)),
                Evidence(f"environ.variables.{rank_name}", str(task)),
            ),
            fix=f"Run `export RANK=${rank_name}` inside every task, or unset RANK before the launcher.",
            fix_command=f"export RANK=${rank_name} WORLD_SIZE=${world_name}" if world_name else None,
            severity=Severity.NOTE if alone else None,
        )
    elif world is not None and tasks and world != tasks and not _counts_nodes(environ, world, tasks):
        yield Finding(
            f"WORLD_SIZE={world}, but {launcher.title} started {tasks} tasks ({world_name}={tasks})",
            (Evidence("environ.variables.WORLD_SIZE", str(world), str(tasks)),),
            fix=f"Run `export WORLD_SIZE=${world_name}` inside every task, or unset WORLD_SIZE before the launcher.",
            fix_command=f"export RANK=${rank_name} WORLD_SIZE=${world_name}",
        )


def _is_one_of_several(rank: int, world: int | None, task: int, tasks: int | None) -> bool:
    """Whether the task started several processes, `world / tasks` each, of which this is one: its rank then rightly
    differs from the task's.
    """
    if world is None or not tasks or world <= tasks or world % tasks:
        return False
    return rank // (world // tasks) == task


def _counts_nodes(environ: Environ, world: int, tasks: int) -> bool:
    """Whether one task per node is about to start several ranks: RANK is then a node rank, and WORLD_SIZE counts the
    ranks to come.
    """
    return world > tasks and world % tasks == 0 and not environ.has("LOCAL_RANK") and tasks == environ.nnodes
