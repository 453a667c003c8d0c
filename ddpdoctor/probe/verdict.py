"""From observations to one verdict: publishes this rank's, waits for the others', and all ranks agree on the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ddpdoctor.causality.observation_order import NEEDS_NO_GRACE, weigh
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network.tcpstore.client import StoreLost
from ddpdoctor.probe.host_reports import shown_reports
from ddpdoctor.probe.local_supervisors import LocalSupervisors
from ddpdoctor.probe.missing_ranks import cut_off_host, not_joined_here
from ddpdoctor.probe.peer_monitor import PeerMonitor
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys
from ddpdoctor.probe.worker_handle import WorkerHandle

__all__ = ["VerdictMixin"]

GRACE_SECONDS = 0.7
"""How long the judge waits for the observations of others."""
SHORT_SECONDS = 0.25
LONG_SECONDS = 3.0
"""How much longer if there are none: on a busy machine, a rank needs time to locate its worker."""
ENDING_SECONDS = 0.8
"""On a busy machine, how much later than its peers a supervisor may notice that its own worker ended."""
UNCERTAIN = (Kind.HANG, Kind.OUT_OF_TIME, Kind.PEER_ERROR)
PLAIN = (Kind.DIED, Kind.STOPPED, Kind.HOST_LOST, Kind.NEVER_JOINED)
STILL_SECONDS = 0.35
LOOK_SECONDS = 0.1
AWAY_SECONDS = 2.0
"""A rank that entered a phase more recently than this does not delay the others: they may have been terminated."""
CUT_SECONDS = 0.5
"""How much earlier the time limit may end on another rank."""


class VerdictMixin:
    """One rank's way to a verdict, at most `seconds` after its start.

    `waited` is how long it waited for the last rank to join.
    """

    def __init__(
        self,
        rank_env: RankEnv,
        worker: WorkerHandle,
        backend: str,
        seconds: float,
        supervisors: LocalSupervisors | None = None,
    ) -> None:
        self.rank_env = rank_env
        self.worker = worker
        self.backend = backend
        self.started = time.monotonic()
        self.end = self.started + seconds
        self.peer_monitor = PeerMonitor(rank_env, supervisors)
        self.store_keys: StoreKeys | None = None
        self.waited = 0.0
        self._published: list[Observation] = []

    @property
    def _store_keys(self) -> StoreKeys:
        assert self.store_keys is not None
        return self.store_keys

    def probe(self, observations: tuple[Observation, ...], ranks: tuple[RankReport, ...]) -> Probe:
        rank_env = self.rank_env
        return Probe(
            world_size=rank_env.world_size,
            backend=self.backend,
            launcher=rank_env.launcher,
            master=f"{rank_env.master_addr}:{rank_env.master_port}",
            seconds=self.seconds,
            ranks=ranks,
            observations=observations,
            measurements=tuple(self.worker.measurements),
            unsupported=tuple(self.worker.unsupported),
            pairs=tuple(self.worker.pairs),
            traits=self.traits_of(ranks),
            device=self.worker.device,
            gaps=self._strangers(),
        )

    def _strangers(self) -> tuple[Gap, ...]:
        """What in the store was not written by the job's ranks."""
        strange = self.store_keys.records.strange if self.store_keys is not None else {}
        keys = ", ".join(sorted(strange)[:8])
        return (
            (Gap("probe.store", f"the store holds records that no rank of this job wrote ({keys})"),) if strange else ()
        )

    @property
    def seconds(self) -> float:
        """Seconds since the start of this rank."""
        return round(time.monotonic() - self.started, 3)

    def traits_of(self, ranks: Sequence[RankReport]) -> dict[str, str]:
        """The properties of the first rank, if another one differs."""
        return self.store_keys.differences()[0] if self.store_keys is not None and any(r.traits for r in ranks) else {}

    def fail(self, observations: tuple[Observation, ...]) -> Probe:
        """Publish this rank's observations, and agree with the others on a verdict."""
        if self.store_keys is None:
            return self.probe(weigh(observations), (self.worker.report(),))
        if any(map(self.is_about_store, observations)):
            return self.judge_alone(StoreLost(ConnectOutcome.SILENT, "its process is not running"), observations)
        try:
            self._published = [*observations, *self._own_condition(observations)]
            self.store_keys.fail(self.worker.report(self.waited), self._published)
            grace = max((_grace(o) for o in observations), default=GRACE_SECONDS)
            if grace == 0.0 or self.store_keys.is_judge():
                self._watch_for(grace)
                if all(o.kind in UNCERTAIN for o in self.store_keys.evidence()):
                    since = time.monotonic()
                    self._watch_for(LONG_SECONDS, lambda: self._is_settled(since))
                elif self._is_about_links(self.store_keys.evidence()):
                    self._watch_for(LONG_SECONDS, self.store_keys.have_all_reported)
                return self._judge()
            end = time.monotonic() + LONG_SECONDS + 2.0
            while time.monotonic() < end:
                verdict = self.store_keys.verdict()
                if verdict is not None:
                    return verdict
                self._watch_for(LOOK_SECONDS)
            return self._judge()
        except StoreLost as lost:
            return self.judge_alone(lost, observations)

    @staticmethod
    def _is_about_links(evidence: Sequence[Observation]) -> bool:
        """Whether all observations are links between hosts without an answer."""
        return all(o.kind is Kind.LINK_BLOCKED for o in evidence)

    def _is_settled(self, since: float) -> bool:
        """Whether waiting is over: a rank has named a process that does not run, or all have reported a while ago."""
        if any(o.kind in PLAIN for o in self._store_keys.evidence()):
            return True
        return time.monotonic() - since > ENDING_SECONDS and self._store_keys.have_all_reported()

    def is_about_store(self, seen: Observation) -> bool:
        """Whether the process that hosts the store does not run, or its host is lost, so that requests would only time out."""
        if seen.ranks != (0,) or self.rank_env.rank == 0:
            return False
        if seen.kind is Kind.HOST_LOST:
            return True
        return seen.kind in (Kind.DIED, Kind.STOPPED) and seen.pid is not None and not self.rank_env.uses_agent_store

    def _own_condition(self, known: tuple[Observation, ...]) -> list[Observation]:
        """If another rank reported the failure: the problems of this rank that are visible immediately."""
        if known:
            return []
        now = time.monotonic()
        self.worker.read()
        found = self.worker.look(now) or self.peer_monitor.look(now, self.worker.phase)
        if found is None and now > self.end - CUT_SECONDS:
            found = self.worker.unfinished(now)
        elif found is None and self.worker.ready and not self.worker.waits and now - self.worker.since > AWAY_SECONDS:
            found = self.worker.locate()
        found = found if found is not None and found.kind is not Kind.HANG else None
        return [*([found] if found else []), *self.peer_monitor.links()]

    def _judge(self) -> Probe:
        store_keys = self._store_keys
        verdict = store_keys.verdict()
        if verdict is not None:
            return verdict
        evidence, ranks = store_keys.gather()
        if all(o.kind is Kind.TERMINATED for o in evidence):
            evidence = (*evidence, *not_joined_here(store_keys, self.rank_env))
        lost = cut_off_host(store_keys, self.rank_env, evidence) if self._is_about_links(evidence) else None
        evidence = (lost, *evidence) if lost is not None else evidence
        named = {rank for o in evidence for rank in o.ranks}
        return store_keys.decide(self.probe(weigh(evidence), shown_reports(ranks, named)))

    def _watch_for(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait; publish new observations of the worker or a local peer meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not is_enough():
            time.sleep(min(LOOK_SECONDS, max(end - time.monotonic(), 0.0)))
            self.worker.read()
            now = time.monotonic()
            for found in (self.worker.look(now), self.peer_monitor.look(now, self.worker.phase)):
                if found is not None and found.kind not in UNCERTAIN and found not in self._published:
                    self._store_keys.publish("evidence", found)
                    self._published.append(found)

    def judge_alone(self, store_lost: StoreLost, observations: tuple[Observation, ...] = ()) -> Probe:
        """This rank's own verdict: the store is lost, so the other ranks are unreachable."""
        self.peer_monitor.stop_heartbeat()
        if self.store_keys is not None:
            self.store_keys.store.is_lost = True
        seen = [*observations, *self._dead_or_stopped(observations)]
        lost = None if seen or self.store_keys is None else self.peer_monitor.lost(self.store_keys.store.address)
        seen.append(replace(lost, phase=self.worker.phase) if lost is not None else self._without_store(store_lost))
        named = {rank for o in seen if o.kind in (Kind.DIED, Kind.STOPPED) and o.host for rank in o.ranks}
        kept = [o for o in seen if o.host or not named.issuperset(o.ranks)]
        return self.probe(weigh(kept), (self.worker.report(self.waited),))

    def _dead_or_stopped(self, known: Sequence[Observation]) -> list[Observation]:
        """The ranks of this host that do not run. One that ends only now has lost the store too."""
        if any(map(self.is_about_store, known)):
            return []
        found = self.peer_monitor.look(time.monotonic(), self.worker.phase)
        if found is None:
            time.sleep(STILL_SECONDS)
            found = self.peer_monitor.look(time.monotonic(), self.worker.phase)
            found = found if found is not None and found.kind is Kind.STOPPED else None
        return [found] if found is not None and found not in known else []

    def _without_store(self, store_lost: StoreLost) -> Observation:
        rank_env = self.rank_env
        master = f"{rank_env.master_addr}:{rank_env.master_port}"
        if rank_env.uses_agent_store:
            lost = f"the store of torchrun's agent at {master} was lost: {store_lost} (seen by {rank_env.name})"
            host = self.peer_monitor.host_of_head()
            return Observation(Kind.STORE_LOST, lost, (), rank_env.rank, host, phase=self.worker.phase)
        lost = f"rank 0 at {master}, whose supervisor hosts the store, was lost: {store_lost} (seen by {rank_env.name})"
        kind = Kind.DIED if store_lost.outcome is ConnectOutcome.RESET else Kind.STORE_LOST
        return Observation(kind, lost, (0,), rank_env.rank, phase=self.worker.phase)


def _grace(seen: Observation) -> float:
    """How long to wait for better observations: not at all for a wrong number, briefly for a process that does not run."""
    if seen.kind in NEEDS_NO_GRACE:
        return 0.0
    return SHORT_SECONDS if seen.kind in PLAIN and seen.signal != "SIGABRT" else GRACE_SECONDS
