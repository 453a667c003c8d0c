"""HOST002, LOG509: semaphores of multiprocessing live in /dev/shm: a lack of space for one does not mean a full disk."""

from __future__ import annotations

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.traceback_of_line import traceback_of

__all__ = ["no_space_for_semaphores"]

NO_SPACE = (r"\[Errno 28\] No space left on device",)
_FILE = "multiprocessing/synchronize.py"


def no_space_for_semaphores(log: Log) -> list[LogLine]:
    """The lines that end a traceback in the constructor of a semaphore or a lock."""
    return [line for line in matching_lines(log, NO_SPACE) if _is_of_semaphore(log, line)]


def _is_of_semaphore(log: Log, line: LogLine) -> bool:
    traceback = traceback_of(log, line)
    return traceback is not None and bool(traceback.frames) and traceback.frames[-1].file.endswith(_FILE)
