"""From evidence to the one verdict: what this rank saw is told, the others' is waited for, and all agree on what it means."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ddpdoctor.causality.observation_order import NEEDS_NO_GRACE, weigh
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.network.tcpstore.client import StoreLost
from ddpdoctor.probe.host_reports import telling
from ddpdoctor.probe.local_supervisors import Siblings
from ddpdoctor.probe.missing_ranks import cut_off, left_out
from ddpdoctor.probe.peer_monitor import Company
from ddpdoctor.probe.rank_env import Place
from ddpdoctor.probe.store_keys import Board
from ddpdoctor.probe.worker_handle import Child

__all__ = ["Witness"]

GRACE_SECONDS = 0.7
"""How long the judge waits for the evidence of others."""
SHORT_SECONDS = 0.25
LONG_SECONDS = 3.0
"""How much longer, where nobody has: on a busy machine a rank needs its time to see where its worker stands."""
ENDING_SECONDS = 0.8
"""How long a process that ends may go unnoticed by its own supervisor on a busy machine, when its peers have lost it."""
UNCERTAIN = (Kind.HANG, Kind.OUT_OF_TIME, Kind.PEER_ERROR)
PLAIN = (Kind.DIED, Kind.STOPPED, Kind.HOST_LOST, Kind.NEVER_JOINED)
STILL_SECONDS = 0.35
LOOK_SECONDS = 0.1
AWAY_SECONDS = 2.0
"""Who has been in a phase for less than this holds nobody up: the others may have been told to end."""
CUT_SECONDS = 0.5
"""How much earlier than here the whole time may be over elsewhere."""


class Witness:
    """What one rank knows, and how it comes to a verdict, `seconds` after its start at the latest.

    `waited` is how long it waited for the last rank to arrive.
    """

    def __init__(
        self, place: Place, child: Child, backend: str, seconds: float, siblings: Siblings | None = None
    ) -> None:
        self.place = place
        self.child = child
        self.backend = backend
        self.started = time.monotonic()
        self.end = self.started + seconds
        self.company = Company(place, siblings)
        self.board: Board | None = None
        self.waited = 0.0
        self._told: list[Observation] = []

    @property
    def _board(self) -> Board:
        assert self.board is not None
        return self.board

    def probe(self, observations: tuple[Observation, ...], ranks: tuple[RankReport, ...]) -> Probe:
        place = self.place
        return Probe(
            world_size=place.world_size,
            backend=self.backend,
            launcher=place.launcher,
            master=f"{place.master_addr}:{place.master_port}",
            seconds=self.seconds,
            ranks=ranks,
            observations=observations,
            measurements=tuple(self.child.measurements),
            unsupported=tuple(self.child.unsupported),
            pairs=tuple(self.child.pairs),
            traits=self.traits_of(ranks),
            device=self.child.device,
        )

    @property
    def seconds(self) -> float:
        """Since the start of this rank."""
        return round(time.monotonic() - self.started, 3)

    def traits_of(self, ranks: Sequence[RankReport]) -> dict[str, str]:
        """What the first rank said of itself, where another one differs."""
        return self.board.differences()[0] if self.board is not None and any(r.traits for r in ranks) else {}

    def fail(self, observations: tuple[Observation, ...]) -> Probe:
        """Tell what was seen here, and agree with the others on what it means."""
        if self.board is None:
            return self.probe(weigh(observations), (self.child.report(),))
        if any(map(self.is_about_store, observations)):
            return self.alone("its process does not run", observations)
        try:
            self._told = [*observations, *self._own_condition(observations)]
            self.board.fail(self.child.report(self.waited), self._told)
            grace = max((_grace(o) for o in observations), default=GRACE_SECONDS)
            if grace == 0.0 or self.board.is_judge():
                self._linger(grace)
                if all(o.kind in UNCERTAIN for o in self.board.evidence()):
                    since = time.monotonic()
                    self._linger(LONG_SECONDS, lambda: self._is_settled(since))
                elif self._is_about_links(self.board.evidence()):
                    self._linger(LONG_SECONDS, self.board.have_all_spoken)
                return self._judge()
            end = time.monotonic() + LONG_SECONDS + 2.0
            while time.monotonic() < end:
                verdict = self.board.verdict()
                if verdict is not None:
                    return verdict
                self._linger(LOOK_SECONDS)
            return self._judge()
        except StoreLost as lost:
            return self.alone(str(lost), observations)

    @staticmethod
    def _is_about_links(evidence: Sequence[Observation]) -> bool:
        """Whether all that is known are ways between hosts on which nothing came back."""
        return all(o.kind is Kind.LINK_BLOCKED for o in evidence)

    def _is_settled(self, since: float) -> bool:
        """Whether nobody needs to be waited for: one has told which process does not run, or all what they saw a while ago."""
        if any(o.kind in PLAIN for o in self._board.evidence()):
            return True
        return time.monotonic() - since > ENDING_SECONDS and self._board.have_all_spoken()

    def is_about_store(self, seen: Observation) -> bool:
        """Whether the process that hosts the store does not run, or its host is away: asking it would only take time."""
        if seen.ranks != (0,) or self.place.rank == 0:
            return False
        if seen.kind is Kind.HOST_LOST:
            return True
        return seen.kind in (Kind.DIED, Kind.STOPPED) and seen.pid is not None and not self.place.uses_agent_store

    def _own_condition(self, told: tuple[Observation, ...]) -> list[Observation]:
        """When somebody else gave the alarm: what is wrong with this rank, as far as it can be seen at once."""
        if told:
            return []
        now = time.monotonic()
        self.child.read()
        found = self.child.look(now) or self.company.look(now, self.child.phase)
        if found is None and now > self.end - CUT_SECONDS:
            found = self.child.unfinished(now)
        elif found is None and self.child.ready and not self.child.waits and now - self.child.since > AWAY_SECONDS:
            found = self.child.locate()
        found = found if found is not None and found.kind is not Kind.HANG else None
        return [*([found] if found else []), *self.company.links()]

    def _judge(self) -> Probe:
        board = self._board
        verdict = board.verdict()
        if verdict is not None:
            return verdict
        evidence, ranks = board.gather()
        if all(o.kind is Kind.TERMINATED for o in evidence):
            evidence = (*evidence, *left_out(board, self.place))
        lost = cut_off(board, self.place, evidence) if self._is_about_links(evidence) else None
        evidence = (lost, *evidence) if lost is not None else evidence
        named = {rank for o in evidence for rank in o.ranks}
        return board.decide(self.probe(weigh(evidence), telling(ranks, named)))

    def _linger(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; publish what the worker or a neighbour shows meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not is_enough():
            time.sleep(min(LOOK_SECONDS, max(end - time.monotonic(), 0.0)))
            self.child.read()
            now = time.monotonic()
            for found in (self.child.look(now), self.company.look(now, self.child.phase)):
                if found is not None and found.kind not in UNCERTAIN and found not in self._told:
                    self._board.publish("evidence", found)
                    self._told.append(found)

    def alone(self, words: str, observations: tuple[Observation, ...] = ()) -> Probe:
        """A verdict of this rank's own: the store is gone, so nobody can be asked."""
        self.company.hush()
        if self.board is not None:
            self.board.store.is_lost = True
        seen = [*observations, *self._dead_or_stopped(observations)]
        lost = None if seen or self.board is None else self.company.lost(self.board.store.address)
        seen.append(replace(lost, phase=self.child.phase) if lost is not None else self._without_store(words))
        named = {rank for o in seen if o.kind in (Kind.DIED, Kind.STOPPED) and o.host for rank in o.ranks}
        kept = [o for o in seen if o.host or not named.issuperset(o.ranks)]
        return self.probe(weigh(kept), (self.child.report(self.waited),))

    def _dead_or_stopped(self, known: Sequence[Observation]) -> list[Observation]:
        """The ranks of this host that do not run. One that ends only now has lost the store as well."""
        if any(map(self.is_about_store, known)):
            return []
        found = self.company.look(time.monotonic(), self.child.phase)
        if found is None:
            time.sleep(STILL_SECONDS)
            found = self.company.look(time.monotonic(), self.child.phase)
            found = found if found is not None and found.kind is Kind.STOPPED else None
        return [found] if found is not None and found not in known else []

    def _without_store(self, words: str) -> Observation:
        place = self.place
        master = f"{place.master_addr}:{place.master_port}"
        if place.uses_agent_store:
            lost = f"the store of torchrun's agent at {master} is gone: {words} (seen by {place.name})"
            host = self.company.host_of_head()
            return Observation(Kind.STORE_LOST, lost, (), place.rank, host, phase=self.child.phase)
        lost = f"rank 0 at {master}, whose supervisor hosts the store, is gone: {words} (seen by {place.name})"
        kind = Kind.DIED if "closed" in words or "broke" in words else Kind.STORE_LOST
        return Observation(kind, lost, (0,), place.rank, phase=self.child.phase)


def _grace(seen: Observation) -> float:
    """How long others may still know better: not at all of a wrong number, hardly of a process that does not run."""
    if seen.kind in NEEDS_NO_GRACE:
        return 0.0
    return SHORT_SECONDS if seen.kind in PLAIN and seen.signal != "SIGABRT" else GRACE_SECONDS
