"""The process of lines without a prefix, where other lines name it, as Ray, kubectl and the kernel write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from ddpdoctor.facts.log import Log, LogLine, Traceback, Who
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import POD_LINES, RAY_ACTOR_LINES, RAY_MEMORY_LINES, RAY_TASK_LINES
from ddpdoctor.logs.launcher_exits import SIGNALS

__all__ = ["with_context"]

Spoken = TypeVar("Spoken", LogLine, Traceback)

OF_DEAD = "Worker exit type: "
"""What Ray says of a worker that died, in a line of another process."""
NOWHERE = "0.0.0.0"
"""What Ray says for an actor whose place it does not know."""


def with_context(log: Log) -> Log:
    """The log with the worker or the pod for lines and tracebacks that are about one without saying so themselves."""
    named = sorted((*_named_processes(log), *_killed(log)), key=lambda each: each[1])
    if not named:
        return log
    return replace(
        log,
        lines=tuple(_given(each, named) for each in log.lines),
        tracebacks=tuple(_given(each, named) for each in log.tracebacks),
    )


def _named_processes(log: Log) -> Iterator[tuple[int, int, int, Who]]:
    """The source, the line, how far it reaches, and whom it names."""
    for line, found in context_lines(log, "ray_task"):
        yield line.source, line.number, RAY_TASK_LINES, Who(host=found["host"], pid=int(found["pid"]))
    for line, found in context_lines(log, "ray_dead"):
        yield line.source, line.number, 0, Who(host=found["host"], pid=int(found["pid"]))
    hosts = {(line.source, line.number): found["host"] for line, found in context_lines(log, "ray_address")}
    for line, found in context_lines(log, "ray_actor"):
        near = (hosts.get((line.source, line.number + i)) for i in range(RAY_ACTOR_LINES))
        host = next((each for each in near if each is not None and each != NOWHERE), None)
        yield line.source, line.number, RAY_ACTOR_LINES, Who(host=host, pid=int(found["pid"]))
    for line, found in context_lines(log, "ray_memory"):
        pid = int(found["pid"]) if found["pid"] else None
        yield line.source, line.number - RAY_MEMORY_LINES, RAY_MEMORY_LINES, Who(host=found["host"], pid=pid)
    for line, found in context_lines(log, "replica"):
        yield line.source, line.number, 0, Who(host=found["host"])
    for line, found in context_lines(log, "pod"):
        yield line.source, line.number, POD_LINES, Who(host=found["pod"])
    for line, found in context_lines(log, "pod_row"):
        yield line.source, line.number, 0, Who(host=found["pod"])


def _killed(log: Log) -> Iterator[tuple[int, int, int, Who]]:
    """Lines of the kernel about a process that a launcher saw end by SIGKILL."""
    ended = {each.who.pid: each.who for each in log.exits if each.code == -SIGNALS["SIGKILL"] and each.who.pid}
    for line, found in context_lines(log, "oom_killed"):
        if int(found["pid"]) in ended:
            yield line.source, line.number, 0, ended[int(found["pid"])]


def _given(each: Spoken, named: list[tuple[int, int, int, Who]]) -> Spoken:
    is_told = each.who.pid is not None or each.who.rank is not None
    near = [who for source, at, reach, who in named if source == each.source and at <= each.number <= at + reach]
    if is_told and not (near and isinstance(each, LogLine) and OF_DEAD in each.text):
        return each
    if not near:
        return each
    who = near[-1]
    if is_told:  # the one that printed this says who died
        return replace(each, who=who)
    return replace(each, who=replace(who, host=who.host or each.who.host, task=each.who.task))
