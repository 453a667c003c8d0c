"""LAUNCH589: a launch line uses a variable whose name is nearly, but not quite, one that its scheduler sets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point

__all__: list[str] = []

_INJECTED = (
    *(
        "SKYPILOT_NODE_RANK",
        "SKYPILOT_NODE_IPS",
        "SKYPILOT_NUM_NODES",
        "SKYPILOT_NUM_GPUS_PER_NODE",
        "SKYPILOT_TASK_ID",
    ),
    *("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST"),
    *("SLURM_NODELIST", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID"),
    *("SLURM_JOBID", "SLURM_GPUS_PER_NODE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_GPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURMD_NODENAME"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_CPUS_ON_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
    *("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"),
    *("SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_CPUS_PER_GPU", "SLURM_JOB_NAME", "SLURM_STEP_GPUS"),
    *("SLURM_JOB_GPUS", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_TOPOLOGY_ADDR", "SLURM_JOB_CPUS_PER_NODE"),
    *("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"),
    *("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
    *("LWS_LEADER_ADDRESS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK"),
)
"""Variables that schedulers, operators and MPI set, of which this cause knows those that launch lines use."""
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w{7,60})\}|([A-Za-z_]\w{7,60}))")
_CLOSE = 0.92
"""How alike two names are: one letter lost, doubled or swapped in a name of ten."""
_PREFIXES = ("SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_")


@cause("LAUNCH589", "injected-variable-misspelt", Severity.ERROR, explains=("LAUNCH060",))
def injected_variable_misspelt(launch: Launch) -> Iterator[Finding]:
    """An option of the launcher uses a misspelt variable of the scheduler.

    ## Why it matters
    Nothing sets a variable of this name, so the option is empty. torchrun fails with `invalid literal for int() with base 10`,
    or the nodes get the same rank.

    ## Fix
    Correct the name of the variable.

    ## Example
        error[LAUNCH589]: $SKPILOT_NUM_NODES is not set: SKYPILOT_NUM_NODES is

        # before
        torchrun --nnodes=$SKPILOT_NUM_NODES train.py

        # after
        torchrun --nnodes=$SKYPILOT_NUM_NODES train.py

    ## Source
    docs.skypilot.co, "Distributed Multi-Node Jobs"; slurm.schedmd.com, srun, "OUTPUT ENVIRONMENT VARIABLES".
    """
    for line in launch.lines:
        told = set()
        for word, name in _names(line):
            if name in told or name in _INJECTED or name in line.environ.variables or name in line.known:
                continue
            close = difflib.get_close_matches(name, _INJECTED, n=1, cutoff=_CLOSE)
            if not close or name.startswith(_PREFIXES):
                continue
            told.add(name)
            text = f"${name:.30} is not set: {close[0]:.26} is"
            yield point(launch, line, word, text, f"${close[0]}", None, label=f"use ${close[0]}")


def _names(line: LaunchLine) -> Iterator[tuple[Word, str]]:
    """The variables in the options of its launcher, with their words."""
    layer = line.agent or line.starter
    for word in () if layer is None else layer.own[1:]:
        for found in _USED.finditer(word.raw):
            yield word, found[1] or found[2]
