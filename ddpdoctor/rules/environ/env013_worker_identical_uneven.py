"""ENV013: agents that take equal nodes for granted, on nodes that are not equal."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch import master


@cause("ENV013", "worker-identical-uneven", Severity.ERROR, scope=CauseScope.LINES_OF_NODES)
def worker_identical_uneven(
    environ: Environ, launch: Launch | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """TORCH_ELASTIC_WORKER_IDENTICAL=1, but the nodes run different numbers of processes.

    ## Why it matters
    Each of torchrun's agents then computes the ranks alone, as if all nodes were like its own: one node believes in a world of
    2 and the other in a world of 4, and all hang in init_process_group without a message.

    ## Fix
    Unset TORCH_ELASTIC_WORKER_IDENTICAL, or give every node the same --nproc-per-node.

    ## Source
    torch/distributed/elastic/agent/server/api.py: `_assign_worker_ranks`.
    """
    if launch is not None and job is not None:
        yield from master.uneven(job)
    if environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") != "1" or environ.is_multi_node is False:
        return
    layouts = [n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if "," in (environ.get(n) or "")]
    if layouts:
        seen = shorten(environ.variables[layouts[0]])
        yield Finding(
            f"TORCH_ELASTIC_WORKER_IDENTICAL=1, but {layouts[0]}={seen}: expected the same number on every node",
            (
                Evidence("environ.variables.TORCH_ELASTIC_WORKER_IDENTICAL", "1", "unset"),
                Evidence(f"environ.variables.{layouts[0]}", seen, "one number"),
            ),
            fix_command="unset TORCH_ELASTIC_WORKER_IDENTICAL",
        )
