"""Lines that tell jobs apart: a launcher starts, a scheduler or a user names the job."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpdoctor.facts.log import MarkKind
from ddpdoctor.late_pattern import pattern

__all__ = ["MARK_WORDS", "LineMark", "mark_in"]

_OF_SLURM = (
    r"\bSLURM_JOB_?ID[\"']?\s?[=:]\s?[\"']?(?P<slurm>\d+)"
    r"|\*\*\* (?:JOB|STEP) (?P<ended>\d+(?:_\d+)?)\S* ON "
    r"|\bStepId=(?P<step>\d+(?:_\d+)?)"
    r"|srun: (?:[Jj]ob|Force Terminated job|launch/slurm: _step_signal: Terminating StepId=) ?(?P<srun>\d+)"
)
_OF_RUN = r"\brun_id\s+: (?P<run>\S+)|--rdzv[-_]id[= ](?P<rdzv>[\w.-]+)"
_ID = pattern(f"{_OF_SLURM}|{_OF_RUN}")
_START = pattern(
    r"(?P<torchrun>Setting OMP_NUM_THREADS environment variable for each process)"
    r"|(?P<agent>Starting elastic_operator with launch configs)"
    r"|(?P<deepspeed>\[runner\.py:\d+:main\] cmd = )"
    r"|(?P<lightning>Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/)"
    r"|(?P<shell>^\++ (?:\w+=\S* )*(?:\S*/)?(?:torchrun|srun|mpirun|mpiexec|deepspeed|accelerate launch"
    r"|python[\d.]* -m torch\.distributed\.(?:run|launch))\s)"
    r"|(?P<slurm>srun: job \d+ (?:queued and waiting|has been allocated))"
)
MARK_WORDS = (
    "Setting OMP_NUM_THREADS",
    "Starting elastic_operator",
    "[runner.py:",
    "Initializing distributed: ",
    "SLURM_JOB",
    "*** JOB ",
    "*** STEP ",
    "StepId=",
    "srun: job ",
    "srun: Job ",
    "srun: Force Terminated job",
    "run_id  ",
    "--rdzv-id",
    "--rdzv_id",
    "+ torchrun ",
    "+ srun ",
    "+ mpirun ",
    "+ mpiexec ",
    "+ deepspeed ",
    "+ accelerate launch ",
    "+ python",
)
"""One of these is in every line that tells jobs apart."""
_NAMELESS = ("none", "None", "0", "$SLURM_JOB_ID")
"""Run ids that tell nothing."""


class LineMark(NamedTuple):
    """What one line says of its job."""

    kind: MarkKind
    by: str
    ids: tuple[tuple[str, str], ...]


def mark_in(text: str) -> LineMark | None:
    """What a line without prefixes says of its job; None for most lines."""
    if not any(word in text for word in MARK_WORDS):
        return None
    ids = tuple(dict.fromkeys(pair for found in _ID.finditer(text) if (pair := _pair(found)) is not None))
    start = _START.search(text)
    if start is not None:
        return LineMark(MarkKind.START, start.lastgroup or "", ids)
    return LineMark(MarkKind.ID, "", ids) if ids else None


def _pair(found: re.Match[str]) -> tuple[str, str] | None:
    kind = "run" if found.lastgroup in ("run", "rdzv") else "slurm"
    value = found[found.lastgroup or 0]
    return None if kind == "run" and value in _NAMELESS else (kind, value)
