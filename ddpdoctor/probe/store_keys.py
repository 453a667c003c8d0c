"""The store keys through which the supervisors of a job communicate.

Every rank makes a fixed number of requests for any number of ranks; only the last one, or the judge, reads what all have
written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.network.proof import NO_PROOF, Proof
from ddpdoctor.network.tcpstore.client import Store
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.probe.host_reports import pack, unpack
from ddpdoctor.probe.hosts import HostCard
from ddpdoctor.probe.local_peers import LocalPeer
from ddpdoctor.probe.proc import read_stat
from ddpdoctor.probe.rank_env import RankEnv, host_key
from ddpdoctor.probe.records import ARRIVAL, CARD, RANKED, Records, Shape

__all__ = ["FAILED", "STEPS", "StoreKeys"]

FAILED = b"X"
STEPS = ("join", "run", "end")
"""The steps that all ranks wait for: all joined, all imported torch, all finished."""
OPEN = frozenset({"arrivals"})
"""Keys that ranks without the secret use as well, so that it is seen that they were here."""
_LOGS = {"join": "arrivals", "run": "ready", "end": "through"}
"""The log to which each rank has written when it is counted for a step."""


class StoreKeys:
    """One rank's view of the shared keys."""

    def __init__(self, store: Store, rank_env: RankEnv, proof: Proof = NO_PROOF) -> None:
        self.store = store
        if proof.is_given:  # nobody else can guess the names of the counters, which have no proof
            store.hide(f"{proof.of(b'keys')}/", except_for=OPEN)
        self.rank_env = rank_env
        self.records = Records(proof)
        self.host = f"host/{host_key()}"

    def arrive(self) -> Observation | None:
        """Join; an observation if this rank contradicts those that joined before."""
        rank_env, store = self.rank_env, self.store
        stat = read_stat(os.getpid())
        record = {
            "rank": rank_env.rank,
            "host": rank_env.host,
            "pid": os.getpid(),
            "started": stat.started if stat else 0,
            "local_rank": rank_env.local_rank,
            "node_rank": rank_env.node_rank,
            "world_size": rank_env.world_size,
        }
        line = self.records.line(record)
        store.append("arrivals", line)
        store.append(self.host, line)
        if rank_env.rank >= rank_env.world_size:
            message = f"{rank_env.name} is outside 0 to {rank_env.world_size - 1} (WORLD_SIZE={rank_env.world_size})"
            return self.observe(Kind.RANK_OUT_OF_RANGE, message, str(rank_env.rank), f"0 to {rank_env.world_size - 1}")
        first = self.records.one("world", store.claim("world", line), ARRIVAL) or record
        if first["world_size"] != rank_env.world_size:
            peer = f"rank {first['rank']} on {first['host']} has {first['world_size']}"
            message = f"{rank_env.name} has WORLD_SIZE={rank_env.world_size}, but {peer}"
            return self.observe(Kind.WORLD_SIZE_DIFFERS, message, str(rank_env.world_size), str(first["world_size"]))
        key = f"rank/{rank_env.rank}"
        other = self.records.one(key, store.claim(key, line), ARRIVAL) or record
        if (other["host"], other["pid"]) != (rank_env.host, os.getpid()):
            message = (
                f"two processes have rank {rank_env.rank}: pid {other['pid']} on {other['host']}"
                f" and pid {os.getpid()} on {rank_env.host}"
            )
            return self.observe(Kind.DUPLICATE_RANK, message, f"rank {rank_env.rank} twice", "once")
        return None

    def is_first_of_host(self) -> bool:
        return self.store.add(f"{self.host}/ranks", 1) == 1

    def next_host(self) -> int:
        """The index of a host that no rank represented before."""
        return self.store.add("hosts", 1) - 1

    def post(self, card: HostCard, name: str | None = None) -> None:
        """Publish this host's card, under its index or a name."""
        self.store.set(f"card/{name or card.index}", self.records.line(vars(card)))

    def count_hosts(self) -> int:
        return self.store.add("hosts", 0)

    def card(self, index: int | str) -> HostCard | None:
        """The card of a host, None if it is not published yet."""
        text = self.store.get(f"card/{index}")
        card = self.records.one(f"card/{index}", text, CARD) if text else None
        return self.records.tried(f"card/{index}", lambda: HostCard(**card)) if card is not None else None

    def observe(self, kind: Kind, message: str, value: str | None = None, expected: str | None = None) -> Observation:
        """An observation about this rank."""
        return self.rank_env.observe(kind, message, pid=os.getpid(), value=value, expected=expected)

    def count(self, step: str) -> bool:
        """Count this rank as having reached the step; whether it is the last one.

        A counter alone is not believed: another program may have changed it.
        """
        counted, size = self.store.add(f"count/{step}", 1), self.rank_env.world_size
        if 0 < counted < size:
            return False
        records = self.arrivals() if step == "join" else self.log(_LOGS[step])
        return len({record["rank"] for record in records} & set(range(size))) == size

    def go(self, step: str, value: object) -> None:
        self.store.set(f"go/{step}", self.records.line(value))

    def gone(self, step: str) -> Any:
        """What the last rank decided when all had reached the step; None if that is not readable."""
        return self.records.value(f"go/{step}", self.store.get(f"go/{step}"))

    def local_peers(self) -> list[LocalPeer]:
        """The other ranks of this host that have joined."""
        mine = os.getpid()
        return [
            LocalPeer(r["rank"], r["pid"], r["started"], r["host"], r["local_rank"], r["node_rank"])
            for r in self.records.lines(self.host, self.store.get(self.host), ARRIVAL)
            if r["pid"] != mine
        ]

    def missing(self) -> list[int]:
        """The ranks that have not joined."""
        arrived = {record["rank"] for record in self.arrivals()}
        return [rank for rank in range(self.rank_env.world_size) if rank not in arrived]

    def host_of(self, rank: int) -> str | None:
        """The host of a rank that has joined."""
        text = self.store.get(f"rank/{rank}")
        record = self.records.one(f"rank/{rank}", text, ARRIVAL) if text else None
        return None if record is None else str(record["host"])

    def arrivals(self) -> list[dict[str, Any]]:
        """The records of the ranks that have joined."""
        return self.records.lines("arrivals", self.store.get("arrivals"), ARRIVAL)

    def publish(self, log: str, value: object) -> None:
        """Append one record to a log, without the secrets that a message or a variable may contain."""
        self.store.append(log, self.records.line(redact(encode(value))))

    def log(self, name: str, shape: Shape = RANKED) -> list[dict[str, Any]]:
        return self.records.lines(name, self.store.get(name), shape)

    def submit_report(self, report: RankReport) -> None:
        """Publish a report; the last rank of a host merges those of its host."""
        self.publish("through", {"rank": report.rank})
        size = self.rank_env.local_world_size or 1
        if size == 1:
            self.publish("reports", pack([report]))
            return
        node = self.host if self.rank_env.node_rank is None else f"node/{self.rank_env.node_rank}"
        self.publish(f"{node}/reports", report)
        if self.store.add(f"{node}/through", 1) == size:
            found = (self.records.read("reports", each, RankReport) for each in self.log(f"{node}/reports"))
            self.publish("reports", pack([each for each in found if each is not None] or [report]))

    def compare(self, traits: Mapping[str, str]) -> None:
        """Publish how this rank differs from the first one that called this."""
        traits = redact(dict(traits))
        first = self._traits(self.store.claim("alike", self.records.line(traits))) or traits
        unlike = {name: traits.get(name, "") for name in {*first, *traits} if traits.get(name) != first.get(name)}
        if unlike:
            self.publish("unlike", {"rank": self.rank_env.rank, "traits": unlike})

    def differences(self) -> tuple[dict[str, str], dict[int, dict[str, str]]]:
        """The properties of the first rank, and the differences of each other one."""
        first = self.store.get("alike")
        others = self.log("unlike", {**RANKED, "traits": (dict,)})
        return self._traits(first) if first else {}, {other["rank"]: _strings(other["traits"]) for other in others}

    def _traits(self, line: bytes) -> dict[str, str]:
        return _strings(self.records.one("alike", line, {}) or {})

    def share(self, key: str, probe: Probe) -> None:
        """Publish a probe for all ranks."""
        self.store.set(key, self.records.packed(probe))

    def shared(self, key: str) -> Probe:
        """A published probe; all ranks have waited for it. An empty one if a stranger wrote over it."""
        return self.records.unpacked(key, self.store.get(key)) or Probe()

    def fail(self, report: RankReport, observations: Iterable[Observation]) -> None:
        """Publish this rank's observations of a failure, and wake all ranks."""
        for observation in observations:
            self.publish("evidence", observation)
        self.publish("reports", pack([report]))
        self.store.add("spoken", 1)
        self.wake()

    def wake(self) -> None:
        """End the waits of all ranks, so that they publish their observations."""
        for step in STEPS:
            self.store.set(f"go/{step}", FAILED)

    def have_all_reported(self) -> bool:
        """Whether every rank has published its observations of a failure."""
        return self.store.add("spoken", 0) >= self.rank_env.world_size

    def unreported(self) -> dict[str, list[int]]:
        """The ranks that joined but published nothing about a failure, by host."""
        reported = {report.rank for report in self.reports()}
        hosts: dict[str, list[int]] = {}
        for record in self.arrivals():
            hosts.setdefault(record["host"], []).extend([record["rank"]] if record["rank"] not in reported else ())
        return {host: sorted(ranks) for host, ranks in hosts.items() if ranks}

    def is_judge(self) -> bool:
        """Whether this rank is the first that asks: the judge, which waits for the others' observations and makes the verdict."""
        return self.store.add("judge", 1) == 1

    def evidence(self) -> tuple[Observation, ...]:
        """The observations published so far."""
        found = (self.records.read("evidence", each, Observation) for each in self.log("evidence", {}))
        return tuple(each for each in found if each is not None)

    def reports(self) -> list[RankReport]:
        """What the ranks reported about themselves."""
        records = self.log("reports", {"common": (dict,), "ranks": (list,)})
        return unpack(record for record in records if self._is_report(record))

    def _is_report(self, record: dict[str, Any]) -> bool:
        for own in record["ranks"]:
            values = {**record["common"], **own} if isinstance(own, dict) else None
            if self.records.read("reports", values, RankReport) is None:
                return False
        return True

    def gather(self) -> tuple[tuple[Observation, ...], tuple[RankReport, ...]]:
        """All observations so far, and how far each rank got: from its own report, else from its joining record."""
        ranks = {report.rank: report for report in self.reports()}
        for r in self.arrivals() if len(ranks) < self.rank_env.world_size else ():
            if r["rank"] not in ranks:
                place = r["local_rank"], r["node_rank"], r["host"], None, r["world_size"]
                ranks[r["rank"]] = RankReport(r["rank"], *place, phase="join")
        for rank, traits in self.differences()[1].items():
            if rank in ranks:
                ranks[rank] = replace(ranks[rank], traits=traits)
        return self.evidence(), tuple(ranks[rank] for rank in sorted(ranks))

    def decide(self, probe: Probe) -> Probe:
        """Propose a verdict; the first proposed one is used by all ranks."""
        return self.records.unpacked("verdict", self.store.claim("verdict", self.records.packed(probe))) or probe

    def verdict(self) -> Probe | None:
        value = self.store.get("verdict")
        return self.records.unpacked("verdict", value) if value else None


def _strings(traits: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in traits.items() if isinstance(value, str)}
