"""One rank from its start to the verdict, in its supervisor: join, import torch, run, agree."""

from __future__ import annotations

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
from ddpdoctor.probe.host_reports import shown_reports
from ddpdoctor.probe.local_supervisors import LocalSupervisors
from ddpdoctor.probe.missing_ranks import never_joined, unfinished_ranks
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.records import RANKED, Shape
from ddpdoctor.probe.store_keys import FAILED
from ddpdoctor.probe.store_rendezvous import Interrupted, ProbeFailure, close_server, host_store, reach_store
from ddpdoctor.probe.transport_capabilities import read_capabilities
from ddpdoctor.probe.verdict import VerdictMixin
from ddpdoctor.probe.worker_handle import WorkerHandle

__all__ = ["RankSession"]

CLOSING_SECONDS = 2.5
"""The part of `--timeout` that is reserved for the verdict and the report."""
LOOK_SECONDS = 0.1
READY: Shape = {**RANKED, "gpus": (int,), "per_host": (int, type(None)), "computes": (bool, type(None))}
STAY_SECONDS = 10.0
"""How long a failed rank waits for rank 0's report, if the launcher would kill rank 0 as soon as another rank ends."""
JUDGING_SECONDS = 1.0
"""How much longer, if rank 0 passes the result to another process that reports it."""
LOOPBACK = "127.0.0.1"
REPORTING_SECONDS = 3.0
"""How long a rank that failed by itself tries to reach the others."""


class RankSession(VerdictMixin):
    """One rank from its start to the verdict."""

    def __init__(
        self, rank_env: RankEnv, worker: WorkerHandle, options: Namespace, supervisors: LocalSupervisors | None = None
    ) -> None:
        timeout: float = options.timeout
        super().__init__(rank_env, worker, options.backend, max(timeout - CLOSING_SECONDS, timeout / 2), supervisors)
        self.peer_monitor.notices_fd = options.news
        self.baseline: str | None = options.baseline
        self.join_until = min(self.started + options.join_timeout, self.end)
        self.server: Server | None = None
        self.gone: set[int] = set()
        """The ranks whose supervisors are gone and will not say goodbye."""
        self._hands_over: bool = options.hand_over
        self._is_quick: bool = options.quick
        self._stay_seconds = 0.0
        self.signal: int | None = None
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def run(self) -> Probe:
        """The verdict on all ranks: the problems, or the measurements.

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
        self.gone = {rank for lost in found for rank in lost.ranks if rank != lost.seen_by}
        self._stay_seconds = STAY_SECONDS if probe.has_failed and self.rank_env.may_be_ended else 0.0
        return probe

    def _run(self) -> Probe:
        try:
            self.server = host_store(self.rank_env)
            self.store_keys = store_keys = reach_store(self.rank_env, self.join_until, self.check)
            store_keys.store.is_hopeless = lambda: self.peer_monitor.is_store_gone(store_keys.store.address)
            self._join()
            self._start_workers()
            return self._finish()
        except ProbeFailure as trouble:
            self._reach_to_report(trouble)
            return self.fail(trouble.observations)
        except StoreLost as lost:
            return self.judge_alone(lost)

    def _reach_to_report(self, trouble: ProbeFailure) -> None:
        """Reach the store after a failure, to report it to the others; the host of the store always can."""
        rank_env = self.rank_env if self.server is None else replace(self.rank_env, master_addr=LOOPBACK)
        if self.store_keys is not None or (
            self.server is None and any(o.phase == "connect" for o in trouble.observations)
        ):
            return
        try:
            self.store_keys = reach_store(rank_env, time.monotonic() + REPORTING_SECONDS, lambda: None)
            self.store_keys.arrive()
        except ProbeFailure:
            return  # the other ranks are unreachable

    def leave(self) -> None:
        """Close the store once the others have read what they need."""
        signal.set_wakeup_fd(-1)
        self.peer_monitor.leave()
        close_server(self.server, self.store_keys, self.rank_env.world_size - len(self.gone), self._stay_seconds)
        if self._stay_seconds and self._hands_over and self.server is None:
            time.sleep(JUDGING_SECONDS)

    def check(self) -> None:
        """Check everything that is known without the store.

        Raises:
            ProbeFailure: this rank or a local peer has a problem.
            Interrupted: Ctrl-C.
        """
        now = time.monotonic()
        self.worker.read()
        found = self.worker.look(now)
        if found is None and self.worker.is_late(now):
            found = self.worker.locate()
        found = found or self.peer_monitor.look(now, self.worker.phase)
        if found is None and now > self.end:
            found = self.worker.unfinished(now)
        if self.signal == signal.SIGINT:
            self._tell_interrupt()
            raise Interrupted
        if found is None and self.server is not None and self.server.is_out_of_files:
            found = self._out_of_files()
        if found is None and self.signal == signal.SIGTERM:
            found = self.worker.observe(Kind.TERMINATED, f"{self.rank_env.name} was terminated (SIGTERM)")
        if found is not None:
            raise ProbeFailure(found)

    def _out_of_files(self) -> Observation:
        """An observation about this process. Its worker is ended to free file descriptors for the report."""
        count = file_limit()
        found = self.worker.observe(Kind.OUT_OF_FILES, f"{self.rank_env.name} reached its limit of {count} open files")
        self.worker.end()
        return replace(found, value=str(count))

    def _tell_interrupt(self) -> None:
        if self.store_keys is not None:
            message = f"{self.rank_env.name} was interrupted (SIGINT)"
            self._unwait()
            self.store_keys.fail(self.worker.report(), [self.worker.observe(Kind.TERMINATED, message)])

    def _unwait(self) -> bool:
        """Cancel the wait; whether the step was reached meanwhile."""
        if self.store_keys is None or not self._waiting:
            return False
        self._waiting = False
        return self.store_keys.store.wait_end(cancel=True)

    _waiting = False

    def _wait(self, step: str, until: float, reached: Callable[[], bool] = lambda: False) -> bytes | None:
        """Wait for a step of all ranks, with checks meanwhile; its value, None after `until` or when `reached` returns True.

        Raises:
            ProbeFailure: this rank failed (with observations), or another one (without).
        """
        store_keys = self._store_keys
        store_keys.store.wait_begin(f"go/{step}")
        self._waiting = True
        while True:
            descriptors = [store_keys.store.fileno(), self._wake, *self.worker.files()]
            readable = select.select(descriptors, [], [], LOOK_SECONDS)[0]
            if store_keys.store.fileno() in readable:
                self._waiting = False
                store_keys.store.wait_end()
                return self._value(step)
            try:
                self.check()
            except ProbeFailure as trouble:
                if any(map(self.is_about_store, trouble.observations)):
                    raise  # the store will not answer
                self._unwait()
                value = store_keys.store.get(f"go/{step}") or FAILED
                if value == FAILED:
                    raise
                return value  # a local peer that has finished may have ended already
            now = time.monotonic()
            if reached() or now > until:
                self._unwait()
                return None
            if self.peer_monitor.is_due(now):
                if self._unwait():
                    return self._value(step)
                self.peer_monitor.refresh(store_keys, now)
                store_keys.store.wait_begin(f"go/{step}")
                self._waiting = True

    def _value(self, step: str) -> bytes:
        value = self._store_keys.store.get(f"go/{step}")
        if value == FAILED:
            raise ProbeFailure
        return value

    def _join(self) -> None:
        store_keys, rank_env = self._store_keys, self.rank_env
        wrong = store_keys.arrive()
        if wrong is not None:
            raise ProbeFailure(wrong)
        self.peer_monitor.register_host(store_keys)
        arrived = time.monotonic()
        if store_keys.count("join"):
            store_keys.go("join", True)
        if self._wait("join", self.join_until) is None:
            raise ProbeFailure(*never_joined(store_keys, rank_env, self.join_until - self.started))
        self.waited = round(time.monotonic() - arrived, 3)
        self.peer_monitor.watch_peers(store_keys)
        if rank_env.local_rank is None:
            ranks = sorted([rank_env.rank, *(peer.rank for peer in self.peer_monitor.local_peers.others)])
            self.rank_env = self.worker.rank_env = replace(rank_env, local_rank=ranks.index(rank_env.rank))

    def _start_workers(self) -> None:
        """Wait until every rank has imported torch; the last one chooses the backend for all."""
        store_keys, worker = self._store_keys, self.worker
        self._wait("run", float("inf"), lambda: worker.ready is not None and self.peer_monitor.links_are_checked)
        if self.peer_monitor.links():
            raise ProbeFailure(*self.peer_monitor.links())
        assert worker.ready is not None
        store_keys.compare(traits(os.environ, worker.ready))
        size = self.rank_env.local_world_size
        own = {
            "gpus": worker.ready["gpus"],
            "per_host": size,
            "computes": worker.ready["computes"] and not self._is_quick,
        }
        store_keys.publish("ready", {"rank": self.rank_env.rank, **own})
        if store_keys.count("run"):
            ready = store_keys.log("ready", READY)
            hosts = store_keys.count_hosts() or 1
            plan = {"backend": choose_backend(self.backend, ready), "per_host": choose_pairs(ready, hosts)}
            store_keys.go("run", {**plan, "computes": all(record["computes"] for record in ready)})
        value = self._wait("run", self.end)
        if value is None:
            raise ProbeFailure(*self._behind("ready", "import", "had not imported torch"))
        rank_env = self.rank_env
        plan = store_keys.gone("run")
        if not isinstance(plan, dict) or not {"backend", "per_host", "computes"} <= plan.keys():
            raise ProbeFailure(
                self.worker.observe(Kind.STORE_LOST, "another program wrote over the store's records of this job")
            )
        self.backend = str(plan["backend"])
        gloo = self.peer_monitor.gloo() if self.backend == "gloo" else None
        if gloo is not None:
            raise ProbeFailure(gloo)
        worker.since = time.monotonic()
        worker.order(
            backend=self.backend,
            rank=rank_env.rank,
            world_size=rank_env.world_size,
            local_rank=rank_env.local_rank or 0,
            store=[rank_env.master_addr, rank_env.master_port, rank_env.prefix + "group/"],
            eager=True,
            loopback=False,
            per_host=plan["per_host"],
            computes=plan["computes"],
        )

    def _behind(self, log: str, phase: str, state: str) -> list[Observation]:
        """The ranks that have not written to the log at the timeout; this rank, if the last of them has just done so."""
        waits = self.worker.observe(Kind.HANG, f"{self.rank_env.name} waits for the others")
        return unfinished_ranks(self._store_keys, self.rank_env, log, phase, state) or [waits]

    def _finish(self) -> Probe:
        store_keys, worker = self._store_keys, self.worker
        self._wait("end", float("inf"), lambda: worker.phase == "done")
        worker.offers = read_capabilities(worker.printed.transports.values())
        if self.rank_env.rank == 0:
            store_keys.share("measured", self._measured())
        store_keys.submit_report(worker.report(self.waited))
        if store_keys.count("end"):
            store_keys.share("healthy", self._healthy())
            store_keys.go("end", True)
        if self._wait("end", self.end) is None:
            raise ProbeFailure(*self._unfinished())
        return replace(store_keys.shared("healthy"), seconds=self.seconds)

    def _unfinished(self) -> list[Observation]:
        self._unwait()
        return self._behind("through", "end", "had not finished the collectives")

    def _measured(self) -> Probe:
        """The measurements of rank 0 with the baseline, shared so that every node reports the same."""
        probe = self.probe((), ())
        if self.baseline is None:
            return probe
        found = compare(probe, self.baseline)
        return replace(probe, gaps=(found,)) if isinstance(found, Gap) else replace(probe, baseline=found)

    def _healthy(self) -> Probe:
        """The reports of all ranks, merged by the last rank."""
        ranks = shown_reports(self._store_keys.gather()[1])
        return replace(self._store_keys.shared("measured"), ranks=ranks, traits=self.traits_of(ranks))
