"""What a scheduler allocates to a launch line: GPUs per node and nodes, by options of sbatch and srun or a pod's limits."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.launch.container import container_of

__all__ = ["SCHEDULED", "allocated_nodes", "granted_gpus"]

SCHEDULED = re.compile(r"SLURM_|OMPI_|PMI_|PMIX_|MV2_|JSM_|PALS_|ALPS_")
"""Variables from which a script takes its rank under a scheduler or MPI."""

_COUNT = re.compile(r"(?:[\w.-]+:)?(\d+)")
_GRES = re.compile(r"(?:gres[:/])?gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?(?:\([^)]*\))?")
_SUBSETS = (
    "-w",
    "--nodelist",
    "-F",
    "--nodefile",
    "-r",
    "--relative",
    "-x",
    "--exclude",
    "-n",
    "--ntasks",
    "--het-group",
)


def _given(layer: Layer | None, *flags: str) -> Given | None:
    if layer is None:
        return None
    return next((g for g in reversed(layer.reading.given) if g.flag in flags), None)


def _value(layer: Layer | None, *flags: str) -> str | None:
    given = _given(layer, *flags)
    return given.value if given is not None and is_known(given.value) else None


def granted_gpus(line: LaunchLine) -> tuple[int | None, str]:
    """The GPUs that the processes of one node get, and where that is set. None: not known for certain."""
    if line.pod is not None:
        return line.pod.gpus, "the container's limit"
    box = container_of(line)
    if box is not None and box.gpus:
        return box.gpus, "the container"
    srun = line.layer(LauncherKind.SRUN)
    layers = [each for each in (srun, line.batch) if each is not None]
    if any(_given(each, "--exclusive", "--het-group") for each in layers):
        return None, ""  # the whole node, with an unknown number of GPUs
    for layer in layers:
        for flag in ("--gpus-per-task", "--gpus-per-node", "--gres", "--gpus", "-G"):
            value = _value(layer, flag)
            if value is None:
                continue
            count = _gres(value) if flag == "--gres" else _count(value)
            if flag in ("--gpus", "-G") and allocated_nodes(line) != 1:
                count = None
            if flag == "--gpus-per-task" and srun is None:
                count = None
            if flag != "--gres" or count is not None:
                return count, f"{flag}={value}"
    return None, ""


def _count(value: str) -> int | None:
    match = _COUNT.fullmatch(value)
    return int(match[1]) if match else None


def _gres(value: str) -> int | None:
    counts = [int(m[1] or 1) for part in value.split(",") if (m := _GRES.fullmatch(part.strip()))]
    return sum(counts) if counts else None


def allocated_nodes(line: LaunchLine) -> int | None:
    """How many nodes run the line at the same time. None: not known for certain."""
    srun = line.layer(LauncherKind.SRUN)
    own = _value(srun, "-N", "--nodes")
    if own is None and srun is not None and (srun.reading.is_open or any(_given(srun, flag) for flag in _SUBSETS)):
        return None
    value = own if own is not None else _value(line.batch, "-N", "--nodes")
    return int(value) if value is not None and re.fullmatch(r"\d{1,6}", value) else None
