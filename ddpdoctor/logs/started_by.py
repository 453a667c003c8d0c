"""What started the processes of a log: a scheduler, or torch.multiprocessing.spawn."""

from __future__ import annotations

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.traceback_of_line import traceback_of

__all__ = ["is_spawned", "is_under_scheduler"]


def is_under_scheduler(log: Log) -> bool:
    """Whether srun or mpirun started the tasks: their lines, or the labels that srun adds, are in the log."""
    words = ("srun:", "slurmstepd", "mpirun", "prterun")
    if any(word in line.text for line in (*log.tails, *log.lines) for word in words):
        return True
    return any(line.who.task is not None for line in log.tails)


def is_spawned(log: Log, line: LogLine) -> bool:
    """Whether the line ends a traceback of a process that torch.multiprocessing.spawn started."""
    traceback = traceback_of(log, line)
    return traceback is not None and any("multiprocessing/spawn.py" in frame.file for frame in traceback.frames)
