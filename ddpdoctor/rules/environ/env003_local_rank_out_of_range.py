"""ENV003: LOCAL_RANK is outside 0 to LOCAL_WORLD_SIZE-1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.submitted import at_mark, count_of, option_mark


@cause("ENV003", "local-rank-out-of-range", Severity.ERROR, scope=CauseScope.PROCESS, repairs=("rank-variable",))
def local_rank_out_of_range(environ: Environ) -> Iterator[Finding]:
    """LOCAL_RANK is not one of 0 to LOCAL_WORLD_SIZE-1.

    ## Why it matters
    Scripts use LOCAL_RANK as the number of the GPU. A value that is too large gives `invalid device ordinal`
    although the node has enough GPUs.

    ## Fix
    Number LOCAL_RANK from 0 on every node, or let torchrun set LOCAL_RANK and LOCAL_WORLD_SIZE.

    ## Example

        RuntimeError: CUDA error: invalid device ordinal

        # before, on the second node of 4 GPUs
        export LOCAL_RANK=$RANK                              # 4 to 7
        # after
        export LOCAL_RANK=$((RANK % LOCAL_WORLD_SIZE))       # 0 to 3
    """
    local_rank, (size, source) = environ.integer("LOCAL_RANK"), _size(environ)
    if local_rank is None or size is None or 0 <= local_rank < size:
        return
    if local_rank == -1 and size == 1:  # the common notation for "not distributed"
        return
    rank = environ.rank
    allowed = f"0 to {size - 1}" if size > 0 else "at least one rank on this node"
    outside = f"LOCAL_RANK={local_rank} is outside {allowed} ({source}={size})"
    yield Finding(
        outside if size > 0 else f"{source}={size} leaves no rank for LOCAL_RANK={local_rank}",
        (
            Evidence("environ.variables.LOCAL_RANK", str(local_rank), allowed),
            Evidence(f"environ.variables.{source}", shorten(environ.get(source) or "")),
        ),
        where=Where(rank=rank, local_rank=local_rank, node_rank=environ.node_rank),
        ranks=() if rank is None else (rank,),
    )


def _size(environ: Environ) -> tuple[int | None, str]:
    """The number of ranks on this node, and the variable that holds it.

    Where RANK comes from the tasks of srun or mpirun, one rank per task, the number of tasks on this node counts as
    well.
    """
    name, launcher = environ.local_size_name, environ.launcher
    if environ.has(name) or launcher is None or launcher.counts_pods:
        return environ.integer(name), name
    if environ.integer("WORLD_SIZE") == environ.world_size and environ.integer("RANK") == environ.rank:
        return environ.local_world_size, next((n for n in launcher.local_world_size if environ.has(n)), name)
    return None, name


@local_rank_out_of_range.look
def local_ranks_beyond_the_node(submission: Submission) -> Iterator[Finding]:
    """A job file numbers LOCAL_RANK over all nodes."""
    for step in submission.steps:
        sizes = Counter(task.host for task in step.tasks)
        for task in step.tasks if step.is_certain and len(sizes) > 1 else ():
            text = task.line.environ.variables.get("LOCAL_RANK", "")
            rank, size = int(text) if text.isdigit() else None, sizes[task.host]
            if rank is None or rank < max(size, task.gpus or 0) or task.layer.launcher is not LauncherKind.PYTHON:
                continue
            mark = task.set_at.get("LOCAL_RANK") or option_mark(submission, task)
            message = f"LOCAL_RANK={rank} on {task.host}, which has {count_of(size, 'rank')}"
            expected = f"0 to {size - 1}"
            yield at_mark(submission, mark, message, seen=text, expected=expected, label="number it per node")
            return
