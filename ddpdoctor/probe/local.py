"""`python -m ddpdoctor.probe.local`: the ranks of this machine alone, under one supervisor; prints facts as JSON.

The workers are forks of one process that imported torch once. They meet at a store that this process hosts on the
loopback, and Gloo is bound to the loopback, so that neither names nor routes can disturb what is judged here.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from ddpdoctor.blame import weigh
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.probe.child import PHASE_SECONDS, Child
from ddpdoctor.probe.place import Place, short_host
from ddpdoctor.probe.plan import choose_backend
from ddpdoctor.probe.server import Server
from ddpdoctor.probe.starting import spawn_forked

__all__ = ["main"]

GRACE_SECONDS = 0.7
CLOSING_SECONDS = 1.5
LOOK_SECONDS = 0.1


def main(words: Sequence[str] | None = None) -> int:
    """Probe, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(prog="ddpdoctor.probe.local")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args(words)
    server = Server("127.0.0.1", 0)
    children = spawn_forked([_place(rank, options.nproc, server.port) for rank in range(options.nproc)])
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        probe = _Local(children, server.port, options.backend, options.timeout).run()
    except SystemExit:
        return 130
    finally:
        for child in children:
            child.kill_fork()
        for child in children:
            child.kill()
        server.close()
    json.dump({"probe": encode(probe)}, sys.stdout)
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _place(rank: int, world_size: int, port: int) -> Place:
    return Place(
        launcher="local",
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=port,
        uses_agent_store=False,
        prefix="ddpdoctor/local/",
        host=short_host(),
    )


class _Local:
    """One local probe: all workers are at hand, so evidence needs no store."""

    def __init__(self, children: list[Child], port: int, backend: str, timeout: float) -> None:
        self.children = children
        self.port = port
        self.backend = backend
        self.started = time.monotonic()
        self.end = self.started + max(timeout - CLOSING_SECONDS, timeout / 2)

    def run(self) -> Probe:
        """Let the workers go through every phase together; what went wrong, or what was measured."""
        found = self._until(lambda: all(child.ready for child in self.children))
        if not found:
            self._go()
            found = self._until(lambda: all(child.phase == "done" for child in self.children))
        first = self.children[0]
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
                loopback=True,
            )

    def _until(self, is_reached: Callable[[], bool]) -> list[Observation]:
        """Wait; the evidence when something goes wrong before."""
        while True:
            files = [fd for child in self.children for fd in child.files()]
            select.select(files, [], [], LOOK_SECONDS)
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
        late = any(child.is_late(now, self._allowed(child)) for child in self.children)
        waiting = [c for c in self.children if c.phase == "done" or (c.phase == "import" and c.ready)]
        return [child.locate() for child in self.children if child not in waiting] if late else []

    def _allowed(self, child: Child) -> float:
        return min(PHASE_SECONDS.get(child.phase, 20.0), max(self.end - child.since, 0.5))

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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
