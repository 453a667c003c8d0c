"""One rank from its start to the verdict, as its supervisor goes through it: meet, import, run, agree."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.network.connect import OUT_OF_FILES
from ddpdoctor.network.file_limits import file_limit
from ddpdoctor.network.tcpstore.client import StoreLost
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.probe.agreed_plan import choose_backend, choose_pairs, traits
from ddpdoctor.probe.baseline import compare
from ddpdoctor.probe.host_reports import telling
from ddpdoctor.probe.local_supervisors import Siblings
from ddpdoctor.probe.missing_ranks import behind, never_joined
from ddpdoctor.probe.rank_env import Place
from ddpdoctor.probe.store_keys import FAILED
from ddpdoctor.probe.store_rendezvous import Interrupted, Trouble, close_server, host_store, reach_store
from ddpdoctor.probe.transport_capabilities import ask
from ddpdoctor.probe.verdict import Witness
from ddpdoctor.probe.worker_handle import Child

__all__ = ["Session"]

CLOSING_SECONDS = 2.5
"""What is kept of --timeout for the verdict and the report."""
LOOK_SECONDS = 0.1
STAY_SECONDS = 10.0
"""How long a failed rank stays until rank 0 has told why, where its launcher would end that one as well."""
JUDGING_SECONDS = 1.0
"""How much longer, where rank 0 hands over what is known to somebody who tells it."""
LOOPBACK = "127.0.0.1"
TELLING_SECONDS = 3.0
"""How long a rank that failed on its own tries to reach the others."""


class Session(Witness):
    """One rank from its start to the verdict."""

    def __init__(self, place: Place, child: Child, options: Namespace, siblings: Siblings | None = None) -> None:
        timeout: float = options.timeout
        super().__init__(place, child, options.backend, max(timeout - CLOSING_SECONDS, timeout / 2), siblings)
        self.company.news_fd = options.news
        self.baseline: str | None = options.baseline
        self.join_until = min(self.started + options.join_timeout, self.end)
        self.server: Server | None = None
        self.gone: set[int] = set()
        """The ranks whose supervisors are not there to say goodbye."""
        self._hands_over: bool = options.hand_over
        self._stay_seconds = 0.0
        self.signal: int | None = None
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def run(self) -> Probe:
        """The verdict on all ranks: what went wrong, or what was measured.

        Raises:
            Interrupted: Ctrl-C.
        """
        try:
            probe = self._run()
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            probe = self.fail((self._out_of_files(),))
        found = probe.seen(Kind.DIED, Kind.STOPPED, Kind.HOST_LOST, Kind.NEVER_JOINED)
        self.gone = {rank for each in found for rank in each.ranks if rank != each.seen_by}
        self._stay_seconds = STAY_SECONDS if probe.has_failed and self.place.may_be_ended else 0.0
        return probe

    def _run(self) -> Probe:
        try:
            self.server = host_store(self.place)
            self.board = board = reach_store(self.place, self.join_until, self.check)
            board.store.is_hopeless = lambda: self.company.is_store_gone(board.store.address)
            self._join()
            self._start_workers()
            return self._finish()
        except Trouble as trouble:
            self._reach_to_tell(trouble)
            return self.fail(trouble.observations)
        except StoreLost as lost:
            return self.alone(lost)

    def _reach_to_tell(self, trouble: Trouble) -> None:
        """A rank that failed before it reached the store still tells the others why, and the one that hosts it always can."""
        place = self.place if self.server is None else replace(self.place, master_addr=LOOPBACK)
        if self.board is not None or (self.server is None and any(o.phase == "connect" for o in trouble.observations)):
            return
        try:
            self.board = reach_store(place, time.monotonic() + TELLING_SECONDS, lambda: None)
            self.board.arrive()
        except Trouble:
            return  # nobody can be told

    def leave(self) -> None:
        """Let the store go once the others have read what they need."""
        signal.set_wakeup_fd(-1)
        self.company.leave()
        close_server(self.server, self.board, self.place.world_size - len(self.gone), self._stay_seconds)
        if self._stay_seconds and self._hands_over and self.server is None:
            time.sleep(JUDGING_SECONDS)

    def check(self) -> None:
        """Look at everything that can be known without the store.

        Raises:
            Trouble: something is wrong with this rank or a neighbour.
            Interrupted: Ctrl-C.
        """
        now = time.monotonic()
        self.child.read()
        found = self.child.look(now)
        if found is None and self.child.is_late(now):
            found = self.child.locate()
        found = found or self.company.look(now, self.child.phase)
        if found is None and now > self.end:
            found = self.child.unfinished(now)
        if self.signal == signal.SIGINT:
            self._tell_interrupt()
            raise Interrupted
        if found is None and self.server is not None and self.server.is_out_of_files:
            found = self._out_of_files()
        if found is None and self.signal == signal.SIGTERM:
            found = self.child.observe(Kind.TERMINATED, f"{self.place.name} was told to end (SIGTERM)")
        if found is not None:
            raise Trouble(found)

    def _out_of_files(self) -> Observation:
        """About this process. Its worker ends, so that there are files for what is still to be told."""
        count = file_limit()
        found = self.child.observe(Kind.OUT_OF_FILES, f"{self.place.name} may open {count} files, and needs more")
        self.child.end()
        return replace(found, value=str(count))

    def _tell_interrupt(self) -> None:
        if self.board is not None:
            words = f"{self.place.name} was interrupted (SIGINT)"
            self._unwait()
            self.board.fail(self.child.report(), [self.child.observe(Kind.TERMINATED, words)])

    def _unwait(self) -> bool:
        """Call the wait off; whether what was waited for has come meanwhile."""
        if self.board is None or not self._waiting:
            return False
        self._waiting = False
        return self.board.store.wait_end(cancel=True)

    _waiting = False

    def _wait(self, step: str, until: float, reached: Callable[[], bool] = lambda: False) -> bytes | None:
        """Wait for a step of all ranks, watching meanwhile; its value, None when `until` has passed or `reached` says so.

        Raises:
            Trouble: a rank failed: here (with what was seen), or elsewhere (without).
        """
        board = self._board
        board.store.wait_begin(f"go/{step}")
        self._waiting = True
        while True:
            descriptors = [board.store.fileno(), self._wake, *self.child.files()]
            readable = select.select(descriptors, [], [], LOOK_SECONDS)[0]
            if board.store.fileno() in readable:
                self._waiting = False
                board.store.wait_end()
                return self._value(step)
            try:
                self.check()
            except Trouble as trouble:
                if any(map(self.is_about_store, trouble.observations)):
                    raise  # the store will not answer
                self._unwait()
                value = board.store.get(f"go/{step}") or FAILED
                if value == FAILED:
                    raise
                return value  # a neighbour that is through may be gone already
            now = time.monotonic()
            if reached() or now > until:
                self._unwait()
                return None
            if self.company.is_due(now):
                if self._unwait():
                    return self._value(step)
                self.company.refresh(board, now)
                board.store.wait_begin(f"go/{step}")
                self._waiting = True

    def _value(self, step: str) -> bytes:
        value = self._board.store.get(f"go/{step}")
        if value == FAILED:
            raise Trouble
        return value

    def _join(self) -> None:
        board, place = self._board, self.place
        wrong = board.arrive()
        if wrong is not None:
            raise Trouble(wrong)
        self.company.enlist(board)
        arrived = time.monotonic()
        if board.count("join"):
            board.go("join", True)
        if self._wait("join", self.join_until) is None:
            raise Trouble(*never_joined(board, place, self.join_until - self.started))
        self.waited = round(time.monotonic() - arrived, 3)
        self.company.meet(board)
        if place.local_rank is None:
            ranks = sorted([place.rank, *(each.rank for each in self.company.neighbours.others)])
            self.place = self.child.place = replace(place, local_rank=ranks.index(place.rank))

    def _start_workers(self) -> None:
        """Wait until every rank has imported torch; the last one chooses the backend for all."""
        board, child = self._board, self.child
        self._wait("run", float("inf"), lambda: child.ready is not None and self.company.links_are_tried)
        if self.company.links():
            raise Trouble(*self.company.links())
        assert child.ready is not None
        board.compare(traits(os.environ, child.ready))
        size = self.place.local_world_size
        board.publish("ready", {"rank": self.place.rank, "gpus": child.ready["gpus"], "per_host": size})
        if board.count("run"):
            ready = board.log("ready")
            hosts = board.count_hosts() or 1
            board.go("run", {"backend": choose_backend(self.backend, ready), "per_host": choose_pairs(ready, hosts)})
        value = self._wait("run", self.end)
        if value is None:
            raise Trouble(*self._behind("ready", "import", "had not imported torch"))
        place = self.place
        plan = json.loads(value)
        self.backend = plan["backend"]
        gloo = self.company.gloo() if self.backend == "gloo" else None
        if gloo is not None:
            raise Trouble(gloo)
        child.since = time.monotonic()
        child.order(
            backend=self.backend,
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank or 0,
            store=[place.master_addr, place.master_port, place.prefix + "group/"],
            eager=True,
            loopback=False,
            per_host=plan["per_host"],
        )

    def _behind(self, log: str, phase: str, words: str) -> list[Observation]:
        """Who has not written to the log when the time runs out; this rank, when the last of them came just now."""
        waits = self.child.observe(Kind.HANG, f"{self.place.name} waits for the others")
        return behind(self._board, self.place, log, phase, words) or [waits]

    def _finish(self) -> Probe:
        board, child = self._board, self.child
        self._wait("end", float("inf"), lambda: child.phase == "done")
        child.offers = ask(child.heard.transports.values())
        if self.place.rank == 0:
            board.share("measured", self._measured())
        board.hand_in(child.report(self.waited))
        if board.count("end"):
            board.share("healthy", self._healthy())
            board.go("end", True)
        if self._wait("end", self.end) is None:
            raise Trouble(*self._unfinished())
        return replace(board.shared("healthy"), seconds=self.seconds)

    def _unfinished(self) -> list[Observation]:
        self._unwait()
        return self._behind("through", "end", "was not through the collectives")

    def _measured(self) -> Probe:
        """What rank 0 measured, beside the baseline: every node tells the same of it."""
        probe = self.probe((), ())
        if self.baseline is None:
            return probe
        found = compare(probe, self.baseline)
        return replace(probe, gaps=(found,)) if isinstance(found, Gap) else replace(probe, baseline=found)

    def _healthy(self) -> Probe:
        """What all tell, put together by the rank that comes last."""
        ranks = telling(self._board.gather()[1])
        return replace(self._board.shared("measured"), ranks=ranks, traits=self.traits_of(ranks))
