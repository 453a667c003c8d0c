"""LAUNCH597: a script that reads its rank from variables of another launcher than the one that starts it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, base_name, point

__all__: list[str] = []

_RANK_AND_SIZE = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "FLUX_TASK_RANK": "FLUX_JOB_SIZE",
}
"""The rank and the number of ranks, as the launchers of tasks set them."""
_OF_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"}


@cause("LAUNCH597", "rank-variable-of-other-launcher", Severity.ERROR)
def rank_variable_of_other_launcher(launch: Launch) -> Iterator[Finding]:
    """The script reads its rank from a variable that torchrun does not set.

    ## Why it matters
    Every rank fails with `KeyError: 'OMPI_COMM_WORLD_RANK'`. Where srun or mpirun starts torchrun, all ranks of a node read
    the same number.

    ## Fix
    Read RANK, WORLD_SIZE and LOCAL_RANK in the script.

    Or start the script with mpirun or srun, one task per GPU, without torchrun.

    ## Example
        error[LAUNCH597]: main.py needs OMPI_COMM_WORLD_RANK, which torchrun does not set

        # before
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])

        # after
        rank = int(os.environ["RANK"])

    ## Source
    torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`: the variables of a worker.
    """
    for line, layer, plan in agents(launch):
        script = line.script
        is_torchrun = layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY)
        if script is None or not is_torchrun or plan.nproc is None or plan.nproc < 2 or _OF_TORCHRUN & {*script.reads}:
            continue
        needed = [rank for rank, size in _RANK_AND_SIZE.items() if {rank, size} <= {*script.requires}]
        if len(needed) == 1 and needed[0] not in script.sets:
            text = f"{base_name(script.path)} needs {needed[0]}, which torchrun does not set"
            yield point(launch, line, layer.reading.script, text, "RANK", None, label="reads another launcher's rank")
