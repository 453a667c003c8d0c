"""ENV013: TORCH_ELASTIC_WORKER_IDENTICAL=1 with nodes that run different numbers of processes."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.job import Job
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch import master


@cause("ENV013", "worker-identical-uneven", Severity.ERROR, scope=CauseScope.LINES_OF_NODES)
def worker_identical_uneven(environ: Environ, job: Job | None = None) -> Iterator[Finding]:
    """TORCH_ELASTIC_WORKER_IDENTICAL=1, but the nodes run different numbers of processes.

    ## Why it matters
    Each torchrun agent then computes the ranks as if all nodes were like its own: one node expects a world of 2,
    the other a world of 4. All ranks hang in init_process_group without a message.

    ## Fix
    Unset TORCH_ELASTIC_WORKER_IDENTICAL, or give every node the same --nproc-per-node.

    ## Example

        TORCH_ELASTIC_WORKER_IDENTICAL=1, but the nodes run different numbers of processes (SLURM_TASKS_PER_NODE=2,1)

        # before
        export TORCH_ELASTIC_WORKER_IDENTICAL=1
        torchrun --nnodes 2 --nproc-per-node 2 … train.py    # node 0
        torchrun --nnodes 2 --nproc-per-node 1 … train.py    # node 1

        # after, on every node
        unset TORCH_ELASTIC_WORKER_IDENTICAL

    ## Source
    torch/distributed/elastic/agent/server/api.py: `_assign_worker_ranks`.
    """
    if job is not None:
        yield from master.uneven(job)
    if environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") != "1" or environ.is_multi_node is False:
        return
    layouts = [n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if "," in (environ.get(n) or "")]
    if layouts:
        layout = shorten(environ.variables[layouts[0]])
        yield Finding(
            f"TORCH_ELASTIC_WORKER_IDENTICAL=1, but the nodes run different numbers of processes ({layouts[0]}={layout})",
            (
                Evidence("environ.variables.TORCH_ELASTIC_WORKER_IDENTICAL", "1", "unset"),
                Evidence(f"environ.variables.{layouts[0]}", layout, "one number"),
            ),
            fix_command="unset TORCH_ELASTIC_WORKER_IDENTICAL",
        )
