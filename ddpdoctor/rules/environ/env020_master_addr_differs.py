"""ENV020: every node its own master."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.launch import Launch
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule
from ddpdoctor.rules.launch import master


@rule("ENV020", "master-addr-differs", Severity.ERROR)
def check(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """The nodes were given different master addresses.

    ## Why it matters
    Typical of MASTER_ADDR=$(hostname) inside an srun task: each node takes itself for the master. The node of rank 0 reports
    `1/2 clients joined`, every other one times out against itself.

    ## Fix
    Compute the address once, before srun: MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1).
    """
    if launch is not None:
        yield from master.addresses_differ(launch)
    launcher, node = environ.launcher, environ.node_rank
    here, given = environ.get("SLURMD_NODENAME") or "", environ.get("MASTER_ADDR") or ""
    if launcher is None or launcher.name != "srun" or not node or not environ.is_multi_node:
        return
    if (
        not given
        or given.partition(".")[0] != here.partition(".")[0]
        or environ.integer("RANK") not in (None, environ.rank)
    ):
        return
    yield Finding(
        f"MASTER_ADDR={shorten(given)} is this node, node {node} of the step: expected node 0, where rank 0 runs",
        (
            Evidence("environ.variables.MASTER_ADDR", shorten(given), "the first node of SLURM_STEP_NODELIST"),
            Evidence("environ.variables.SLURM_NODEID", str(node)),
        ),
        fix_command='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        where=Where(host=shorten(here), node_rank=node),
    )
