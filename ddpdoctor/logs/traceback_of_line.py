"""Which traceback a line of a log belongs to."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine, Traceback, Who
from ddpdoctor.logs.distances import LONG_MESSAGE_LINES

__all__ = ["OF_LAUNCHER", "OUTSIDERS", "repeats", "traceback_of", "traceback_of_repeated"]


OF_LAUNCHER = re.compile(r'[^"]*torch/distributed/elastic/')
"""A launcher's line; a file in quotes is a frame of a traceback."""

OUTSIDERS = re.compile(r"slurmstepd|srun: |mpirun|\[?kernel|.*(?:oom-kill|Killed process \d+ \()", re.IGNORECASE)
"""Lines of schedulers and kernels, which are among the workers' lines and belong to no traceback."""


def traceback_of(log: Log, line: LogLine) -> Traceback | None:
    """The traceback whose exception this line is, or belongs to."""
    is_workers = not OUTSIDERS.match(line.text) and not OF_LAUNCHER.match(line.text)
    for each in reversed(log.tracebacks):
        if each.source != line.source or not each.number <= line.number <= each.number + LONG_MESSAGE_LINES:
            continue
        if each.number == line.number or (is_workers and _is_by_same_task(each.who, line.who)):
            return each
    return None


def _is_by_same_task(one: Who, other: Who) -> bool:
    return (one.rank, one.task, one.node_rank) == (other.rank, other.task, other.node_rank)


def repeats(each: Traceback, line: LogLine) -> bool:
    """Whether the traceback's exception is the same text once more, of which the line alone was kept."""
    if line.source != each.source or not line.number < each.number <= line.last:
        return False
    _, name, rest = line.text.partition(each.exception)
    return bool(name) and each.message.startswith(rest.removeprefix(": ")[:80])


def traceback_of_repeated(log: Log, line: LogLine) -> Traceback | None:
    """The traceback that ends in the same words further down: some print the message alone above it."""
    return next((each for each in log.tracebacks if repeats(each, line)), None) if line.count > 1 else None
