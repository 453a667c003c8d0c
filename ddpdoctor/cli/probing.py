"""The probe of one `ddpdoctor check`: of local ranks, or as one rank of the job that the environment describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ddpdoctor.cli.options import Common
from ddpdoctor.cli.reading import seconds_left
from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.machine import Deadline
from ddpdoctor.collectors.probe import Answer, RunningProbe, join, start
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.visibility import visible

__all__ = ["Probing"]

CPU_RANKS = 2
"""How many ranks a machine without a GPU is probed with."""

GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device nodes that show a GPU driver: the ranks to start are as many as GPUs that CUDA sees, and those are not counted yet."""


class Probing:
    """Started as early as its kind allows, finished once, stopped in any case."""

    def __init__(self, common: Common, join_seconds: float, is_alone: bool) -> None:
        self._common = common
        self._join_seconds = join_seconds
        self._is_alone = is_alone
        self._running: RunningProbe | None = None
        self.answer: Answer | None = None

    def start_early(self) -> None:
        """Start local ranks on a machine without GPUs: importing torch takes longer than looking at the machine.

        A rank of a job waits until the machine was looked at, which binds the master port for a moment to see whether
        it is free; and where there are GPUs, they are counted first.
        """
        if not self.joins(dict(os.environ)) and not any(map(os.path.exists, GPU_NODES)):
            self._start(CPU_RANKS)

    def joins(self, variables: dict[str, str]) -> bool:
        """Whether this process is one rank of several that a launcher started."""
        environ = Environ(variables=variables)
        return not self._is_alone and environ.rank is not None and (environ.world_size or 0) > 1

    def looks_at_the_machine(self) -> bool:
        """Whether this rank is the one that looks: of a job's ranks the first of each node."""
        environ = Environ(variables=dict(os.environ))
        return not self.joins(environ.variables) or (environ.local_rank or 0) == 0

    def finish(self, facts: Facts, say: Callable[[str], None]) -> Facts:
        """The facts with those of the probe, or with the gap that says why there are none."""
        try:
            if self.joins(dict(os.environ)):
                say("meeting the other ranks")
                self._running = join(os.environ, min(self._join_seconds, self._seconds()), self._seconds())
            elif self._running is None:
                self._start(self._count(facts))
            else:
                say("probing the local ranks")
            assert self._running is not None
            self.answer = self._running.finish(Deadline(self._seconds()))
            return replace(facts, probe=self.answer.probe)
        except Missing as missing:
            return replace(facts, gaps=(*facts.gaps, Gap("probe", missing.reason, missing.why)))

    def stop(self) -> None:
        """End what still runs."""
        if self._running is not None:
            self._running.stop()

    def _start(self, nproc: int) -> None:
        self._running = start(nproc, seconds=self._seconds())

    def _seconds(self) -> float:
        return max(seconds_left(self._common), 1.0)

    def _count(self, facts: Facts) -> int:
        """One rank for each GPU that CUDA shows, two without any."""
        if facts.gpu is None:
            return CPU_RANKS
        variables = facts.environ.variables if facts.environ is not None else {}
        return visible(variables, facts.gpu).count or CPU_RANKS
