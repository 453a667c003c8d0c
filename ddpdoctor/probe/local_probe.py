"""The supervisor of all ranks of one machine: all workers are its children, so observations need no store."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from ddpdoctor.causality.observation_order import weigh
from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.probe.agreed_plan import choose_backend
from ddpdoctor.probe.transport_capabilities import read_capabilities
from ddpdoctor.probe.worker_handle import WorkerHandle

__all__ = ["LocalProbe"]

GRACE_SECONDS = 0.7
CLOSING_SECONDS = 1.5
LOOK_SECONDS = 0.1


class LocalProbe:
    """One local probe."""

    def __init__(self, workers: list[WorkerHandle], port: int, backend: str, timeout: float) -> None:
        self.workers = workers
        self.port = port
        self.backend = backend
        self._parent = os.getppid()
        self.started = time.monotonic()
        self.end = self.started + max(timeout - CLOSING_SECONDS, timeout / 2)

    def run(self) -> Probe:
        """Run the workers through all phases together; the problems, or the measurements."""
        found = self._until(lambda: all(worker.ready for worker in self.workers))
        if not found:
            self._go()
            found = self._until(lambda: all(worker.phase == "done" for worker in self.workers))
        first = self.workers[0]
        offers = read_capabilities(
            [transport for worker in self.workers for transport in worker.printed.transports.values()]
        )
        for worker in self.workers:
            worker.offers = offers
        return Probe(
            world_size=len(self.workers),
            backend=self.backend,
            launcher="local",
            master=f"127.0.0.1:{self.port}",
            seconds=round(time.monotonic() - self.started, 3),
            ranks=tuple(worker.report() for worker in self.workers),
            observations=weigh(found),
            measurements=tuple(first.measurements),
            unsupported=tuple(first.unsupported),
            pairs=tuple(first.pairs),
        )

    def _go(self) -> None:
        self.backend = choose_backend(self.backend, [worker.ready or {} for worker in self.workers])
        for worker in self.workers:
            worker.since = time.monotonic()
            worker.order(
                backend=self.backend,
                rank=worker.rank_env.rank,
                world_size=len(self.workers),
                local_rank=worker.rank_env.rank,
                store=["127.0.0.1", self.port, "group/"],
                eager=True,
                per_host=len(self.workers),
                computes=all((each.ready or {}).get("computes") for each in self.workers),
                loopback=True,
            )

    def _until(self, is_reached: Callable[[], bool]) -> list[Observation]:
        """Wait until `is_reached`; the observations if a problem occurs before."""
        while True:
            files = [fd for worker in self.workers for fd in worker.files()]
            select.select(files, [], [], LOOK_SECONDS)
            if os.getppid() != self._parent:
                raise SystemExit(1)  # the parent was killed: no process waits for the answer
            found = self._look()
            if found:
                return self._gather(found)
            if is_reached():
                return []

    def _look(self) -> list[Observation]:
        now = time.monotonic()
        for worker in self.workers:
            worker.read()
        observations = [problem for worker in self.workers if (problem := worker.look(now))]
        if observations:
            return observations
        if any(worker.is_late(now) for worker in self.workers):
            return [worker.locate() for worker in self.workers if not worker.waits]
        return [late for worker in self.workers if now > self.end and (late := worker.unfinished(now))]

    def _gather(self, found: list[Observation]) -> list[Observation]:
        """More observations within the grace period: the first visible failure need not be the first one."""
        seen = {(o.kind, o.ranks): o for o in found}
        if not all(o.kind is Kind.PEER_ERROR for o in found):
            return list(seen.values())
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            for worker in self.workers:
                worker.read()
                more = worker.look(time.monotonic())
                if more is not None:
                    seen[(more.kind, more.ranks)] = more
        return list(seen.values())
