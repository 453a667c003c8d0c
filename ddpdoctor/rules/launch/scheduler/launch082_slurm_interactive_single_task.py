"""LAUNCH082: frameworks that read the scheduler's variables, as their output shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "LAUNCH082",
    "slurm-interactive-single-task",
    Severity.ERROR,
    signatures=(r"The `?srun`? command is available on your system but is not used",),
)
def slurm_interactive_single_task(log: Log) -> Iterator[Finding]:
    """An interactive allocation with one task makes the framework start one rank.

    ## Why it matters
    In a shell of salloc or `srun --pty bash`, SLURM_NTASKS is 1, and Lightning uses that as the job: `GLOBAL_RANK: 0,
    MEMBER: 1/1`. The script trains on one GPU without an error; the same script works in sbatch.

    ## Fix
    Start the script with srun inside the allocation.

    Or unset SLURM_NTASKS and SLURM_JOB_NAME in that shell.

    ## Example
        GLOBAL_RANK: 0, MEMBER: 1/1

        # before
        salloc --nodes=1 --gpus=4
        python train.py

        # after
        salloc --nodes=1 --gpus=4
        srun --ntasks-per-node=4 python train.py
    """
    from ddpdoctor.logs.context_patterns import context_lines

    hint = next(
        (line for line in log.lines if "command is available on your system but is not used" in line.text), None
    )
    alone = [line for line, found in context_lines(log, "member") if found["members"] == "1"]
    if hint is not None and alone:
        line = alone[0]
        yield Finding(
            "one rank in the allocation, because srun was not used",
            (Evidence(log.place(line.source, line.number), line.text[:120], "one member per GPU"),),
            where=Where(file=log.sources[line.source].name, line=line.number),
        )
