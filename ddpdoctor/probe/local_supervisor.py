"""The supervisor of all ranks of one machine: every worker is at hand, so evidence needs no store."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from ddpdoctor.causality.observation_order import weigh
from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.probe.agreed_plan import choose_backend
from ddpdoctor.probe.transport_capabilities import ask
from ddpdoctor.probe.worker_handle import Child

__all__ = ["Together"]

GRACE_SECONDS = 0.7
CLOSING_SECONDS = 1.5
LOOK_SECONDS = 0.1


class Together:
    """One local probe."""

    def __init__(self, children: list[Child], port: int, backend: str, timeout: float) -> None:
        self.children = children
        self.port = port
        self.backend = backend
        self._parent = os.getppid()
        self.started = time.monotonic()
        self.end = self.started + max(timeout - CLOSING_SECONDS, timeout / 2)

    def run(self) -> Probe:
        """Let the workers go through every phase together; what went wrong, or what was measured."""
        found = self._until(lambda: all(child.ready for child in self.children))
        if not found:
            self._go()
            found = self._until(lambda: all(child.phase == "done" for child in self.children))
        first = self.children[0]
        offers = ask([each for child in self.children for each in child.heard.transports.values()])
        for child in self.children:
            child.offers = offers
        return Probe(
            world_size=len(self.children),
            backend=self.backend,
            launcher="local",
            master=f"127.0.0.1:{self.port}",
            seconds=round(time.monotonic() - self.started, 3),
            ranks=tuple(child.report() for child in self.children),
            observations=weigh(found),
            measurements=tuple(first.measurements),
            unsupported=tuple(first.unsupported),
            pairs=tuple(first.pairs),
        )

    def _go(self) -> None:
        self.backend = choose_backend(self.backend, [child.ready or {} for child in self.children])
        for child in self.children:
            child.since = time.monotonic()
            child.order(
                backend=self.backend,
                rank=child.place.rank,
                world_size=len(self.children),
                local_rank=child.place.rank,
                store=["127.0.0.1", self.port, "group/"],
                eager=True,
                per_host=len(self.children),
                loopback=True,
            )

    def _until(self, is_reached: Callable[[], bool]) -> list[Observation]:
        """Wait; the evidence when something goes wrong before."""
        while True:
            files = [fd for child in self.children for fd in child.files()]
            select.select(files, [], [], LOOK_SECONDS)
            if os.getppid() != self._parent:
                raise SystemExit(1)  # it was killed: nobody waits for the answer
            found = self._look()
            if found:
                return self._gather(found)
            if is_reached():
                return []

    def _look(self) -> list[Observation]:
        now = time.monotonic()
        for child in self.children:
            child.read()
        found = [seen for child in self.children if (seen := child.look(now))]
        if found:
            return found
        if any(child.is_late(now) for child in self.children):
            return [child.locate() for child in self.children if not child.waits]
        return [seen for child in self.children if now > self.end and (seen := child.unfinished(now))]

    def _gather(self, found: list[Observation]) -> list[Observation]:
        """What else shows within the grace: the rank that failed first need not be the one that failed loudest."""
        seen = {(o.kind, o.ranks): o for o in found}
        if not all(o.kind is Kind.PEER_ERROR for o in found):
            return list(seen.values())
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            for child in self.children:
                child.read()
                more = child.look(time.monotonic())
                if more is not None:
                    seen[(more.kind, more.ranks)] = more
        return list(seen.values())
