"""One rank's supervisor: standard library only, so that whatever happens to the worker can still be told.

It starts the worker at once (its import of torch overlaps everything else), meets the other supervisors in the store
that the job itself would use, lets the workers go together, and watches. Whatever goes wrong anywhere becomes evidence;
after a short grace one verdict is made of it, and every rank tells the same.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType

from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.probe import child as workers
from ddpdoctor.probe.arguments import parse
from ddpdoctor.probe.board import FAILED
from ddpdoctor.probe.lazily import is_worth_a_try, retry
from ddpdoctor.probe.meeting import Interrupted, Trouble, close_server, meet
from ddpdoctor.probe.neighbours import Neighbours
from ddpdoctor.probe.place import BadEnvironment, Place, read_place, short_host
from ddpdoctor.probe.plan import choose_backend
from ddpdoctor.probe.siblings import Siblings
from ddpdoctor.probe.starting import WORKER, adopt, begin
from ddpdoctor.probe.store import StoreLost
from ddpdoctor.probe.telling import tell
from ddpdoctor.probe.verdict import Witness, ranges

__all__ = ["Session", "main"]

CLOSING_SECONDS = 2.5
"""What is kept of --timeout for the verdict and the report."""
LOOK_SECONDS = 0.1


def main(words: Sequence[str] | None = None) -> int:
    """Probe as the rank that the environment names. Returns the exit code."""
    options = parse(words)
    started = time.time()
    try:
        place = read_place(os.environ, options.job)
    except BadEnvironment as error:
        return _without_place(str(error), options, started)
    (child,) = adopt(begin(WORKER), [place])
    siblings = Siblings(place, os.getppid() if options.job is None else options.job)
    session = Session(place, child, options.join_timeout, options.timeout, options.backend)
    signal.signal(signal.SIGTERM, session.on_signal)
    signal.signal(signal.SIGINT, session.on_signal)
    try:
        probe = session.run()
        if session.signal == signal.SIGINT:  # it came while the ranks agreed: what they saw is the end of the others
            raise Interrupted
        child.kill()
        session.neighbours.end_stopped()
        seconds_left = session.end - time.monotonic()
        if is_worth_a_try(probe, seconds_left):
            probe = replace(probe, retried_lazily=retry(session.place, seconds_left))
        is_first = siblings.is_first() and not session.neighbours.lower(place.node_rank)
        if is_first:
            siblings.speak()
        return tell(probe, place, is_first, options, started)
    except Interrupted:
        if place.local_rank in (0, None) and not options.launched:
            print("ddpdoctor: interrupted", file=sys.stderr)
        return 130
    finally:
        child.kill()
        session.leave()


def _without_place(words: str, options: object, started: float) -> int:
    if "no launcher" in words:
        print(
            f"ddpdoctor.probe: {words}\n"
            "Start it as the job is started:\n"
            "torchrun --nproc-per-node=gpu -m ddpdoctor.probe\n"
            "or let the doctor start the ranks:\n"
            "ddpdoctor probe",
            file=sys.stderr,
        )
        return 2
    host = short_host()
    seen = Observation(Kind.BAD_ENVIRONMENT, f"a rank on {host} cannot start: {words}", host=host, value=words)
    return tell(Probe(observations=(seen,), launcher="env://"), None, True, options, started)


class Session(Witness):
    """One rank from its start to the verdict."""

    def __init__(self, place: Place, child: workers.Child, join_timeout: float, timeout: float, backend: str) -> None:
        super().__init__(place, child, backend)
        self.end = self.started + max(timeout - CLOSING_SECONDS, timeout / 2)
        self.join_until = min(self.started + join_timeout, self.end)
        self.server: object | None = None
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
            self.board, self.server = meet(self.place, self.join_until, self.check)
            self._join()
            self._start_workers()
            return self._finish()
        except Trouble as trouble:
            return self.fail(trouble.observations)
        except StoreLost as lost:
            return self.alone(str(lost))

    def leave(self) -> None:
        """Let the store go once the others have read what they need."""
        signal.set_wakeup_fd(-1)
        close_server(self.server, self.board)

    def check(self) -> None:
        """Look at everything that can be known without the store.

        Raises:
            Trouble: something is wrong with this rank or a neighbour.
            Interrupted: Ctrl-C.
        """
        now = time.monotonic()
        self.child.read()
        found = self.child.look(now)
        if found is None and self.child.is_late(now, self._allowed()):
            if self.child.phase == "done":
                raise Trouble(*self._unfinished())
            found = self.child.locate()
        found = found or self.neighbours.look(now, self.child.phase)
        if self.signal == signal.SIGINT:
            self._tell_interrupt()
            raise Interrupted
        if found is None and self.signal == signal.SIGTERM:
            found = self.child.observe(Kind.TERMINATED, f"{self.place.name} was told to end (SIGTERM)")
        if found is not None:
            raise Trouble(found)

    def _allowed(self) -> float:
        """How long the worker may stay in its phase: less when the whole probe would end before."""
        allowed = workers.PHASE_SECONDS.get(self.child.phase, 20.0)
        return min(allowed, max(self.end - self.child.since, 0.5))

    def _tell_interrupt(self) -> None:
        if self.board is not None:
            words = f"{self.place.name} was interrupted (SIGINT)"
            self._unwait()
            self.board.fail(self.child.report(), [self.child.observe(Kind.TERMINATED, words)])

    def _unwait(self) -> None:
        if self.board is not None and self._waiting:
            self._waiting = False
            self.board.store.wait_end(cancel=True)

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
            files = [board.store.fileno(), self._wake, *self.child.files()]
            readable = select.select(files, [], [], LOOK_SECONDS)[0]
            if board.store.fileno() in readable:
                self._waiting = False
                board.store.wait_end()
                return self._value(step)
            try:
                self.check()
            except Trouble:
                self._unwait()
                if board.store.check(f"go/{step}"):
                    return self._value(step)  # a neighbour that is through may be gone already
                raise
            if reached() or time.monotonic() > until:
                self._unwait()
                return None

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
        arrived = time.monotonic()
        if board.count("join"):
            board.go("join", True)
        if self._wait("join", self.join_until) is None:
            raise Trouble(*self._never_joined())
        self.waited = round(time.monotonic() - arrived, 3)
        self.neighbours = Neighbours(place.rank, board.neighbours())
        if place.local_rank is None:
            ranks = sorted([place.rank, *(each.rank for each in self.neighbours.others)])
            self.place = self.child.place = replace(place, local_rank=ranks.index(place.rank))

    def _never_joined(self) -> list[Observation]:
        """One observation for each node that is missing. Only the first rank to ask reads the whole log."""
        if self._board.store.add("late", 1) > 1:
            return []
        missing = self._board.missing()
        size = self.place.local_world_size
        nodes: dict[int | None, list[int]] = {}
        for rank in missing:
            nodes.setdefault(rank // size if size else None, []).append(rank)
        seconds = self.join_until - self.started
        found = []
        for node, ranks in nodes.items():
            who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
            host = self.place.host_of(node)
            where = "" if node is None else f" (node {node}{f', {host}' if host else ''})"
            words = f"{who}{where} never arrived within {seconds:.0f} s"
            found.append(
                Observation(Kind.NEVER_JOINED, words, tuple(ranks), self.place.rank, host, node_rank=node, phase="join")
            )
        return found

    def _start_workers(self) -> None:
        """Wait until every rank has imported torch; the last one chooses the backend for all."""
        board, child = self._board, self.child
        self._wait("run", float("inf"), lambda: child.ready is not None)
        assert child.ready is not None
        board.publish("ready", {"rank": self.place.rank, "gpus": child.ready["gpus"]})
        if board.count("run"):
            board.go("run", {"backend": choose_backend(self.backend, board.log("ready"))})
        value = self._wait("run", self.end)
        if value is None:
            raise Trouble(*self._behind("ready", "import", "had not imported torch"))
        place = self.place
        child.since = time.monotonic()
        child.order(
            backend=json.loads(value)["backend"],
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank or 0,
            store=[place.master_addr, place.master_port, place.prefix + "group/"],
            eager=True,
            loopback=False,
        )
        self.backend = json.loads(value)["backend"]

    def _behind(self, log: str, phase: str, words: str) -> list[Observation]:
        """One observation for each host with ranks that have not written to the log when the time runs out."""
        there = {record["rank"] for record in self._board.log(log)}
        hosts: dict[str | None, list[int]] = {}
        for rank in range(self.place.world_size):
            if rank not in there:
                hosts.setdefault(self._board.host_of(rank), []).append(rank)
        found = []
        for host, ranks in hosts.items():
            who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
            told = f"{who}{f' on {host}' if host else ''} {words} when the time ran out"
            found.append(Observation(Kind.ELSEWHERE, told, tuple(ranks), self.place.rank, host, phase=phase))
        waits = f"{self.place.name} waits for the others"
        return found or [self.child.observe(Kind.HANG, waits)]  # the last of them came just now

    def _finish(self) -> Probe:
        board, child = self._board, self.child
        self._wait("end", float("inf"), lambda: child.phase == "done")
        board.publish("reports", child.report(self.waited))
        if board.count("end"):
            board.go("end", True)
        if self._wait("end", self.end) is None:
            raise Trouble(*self._unfinished())
        return self._healthy()

    def _unfinished(self) -> list[Observation]:
        self._unwait()
        return self._behind("reports", "end", "was not through the collectives")

    def _healthy(self) -> Probe:
        ranks: tuple[RankReport, ...] = ()
        if self.place.rank == 0 or self.place.local_rank == 0:
            ranks = self._board.gather()[1]
        return self.probe((), ranks)
