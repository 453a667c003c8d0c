"""What the supervisors of a job write to each other through the store, and under which keys.

Every rank does a fixed number of requests whatever the number of ranks; only the one that comes last, or that judges,
reads what all have written.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.network.tcpstore.client import Store
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.probe.host_reports import pack, unpack
from ddpdoctor.probe.hosts import HostCard
from ddpdoctor.probe.local_peers import LocalPeer
from ddpdoctor.probe.proc import read_stat
from ddpdoctor.probe.rank_env import RankEnv, host_key

__all__ = ["FAILED", "STEPS", "StoreKeys"]

FAILED = b"X"
STEPS = ("join", "run", "end")
"""What all ranks wait for together: everybody arrived, everybody imported torch, everybody is through."""


class StoreKeys:
    """One rank's view of the shared keys."""

    def __init__(self, store: Store, rank_env: RankEnv) -> None:
        self.store = store
        self.rank_env = rank_env
        self.host = f"host/{host_key()}"

    def arrive(self) -> Observation | None:
        """Sign in; what contradicts the ranks that came before."""
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
        line = json.dumps(record).encode() + b"\n"
        store.append("arrivals", line)
        store.append(self.host, line)
        if rank_env.rank >= rank_env.world_size:
            words = f"{rank_env.name} is outside 0 to {rank_env.world_size - 1} (WORLD_SIZE={rank_env.world_size})"
            return self.observe(Kind.RANK_OUT_OF_RANGE, words, str(rank_env.rank), f"0 to {rank_env.world_size - 1}")
        first = json.loads(store.claim("world", line))
        if first["world_size"] != rank_env.world_size:
            peer = f"rank {first['rank']} on {first['host']} has {first['world_size']}"
            words = f"{rank_env.name} has WORLD_SIZE={rank_env.world_size}, {peer}"
            return self.observe(Kind.WORLD_SIZE_DIFFERS, words, str(rank_env.world_size), str(first["world_size"]))
        other = json.loads(store.claim(f"rank/{rank_env.rank}", line))
        if (other["host"], other["pid"]) != (rank_env.host, os.getpid()):
            words = (
                f"two processes have rank {rank_env.rank}: pid {other['pid']} on {other['host']}"
                f" and pid {os.getpid()} on {rank_env.host}"
            )
            return self.observe(Kind.DUPLICATE_RANK, words, f"rank {rank_env.rank} twice", "once")
        return None

    def is_first_of_host(self) -> bool:
        return self.store.add(f"{self.host}/ranks", 1) == 1

    def next_host(self) -> int:
        """The number of a host that nobody stood for until now."""
        return self.store.add("hosts", 1) - 1

    def post(self, card: HostCard, name: str | None = None) -> None:
        """Tell the others of this host, under its number or a name."""
        self.store.set(f"card/{name or card.index}", json.dumps(vars(card)).encode())

    def count_hosts(self) -> int:
        return self.store.add("hosts", 0)

    def card(self, index: int | str) -> HostCard | None:
        """What a host tells of itself, None when it has not told it yet."""
        told = self.store.get(f"card/{index}")
        return HostCard(**json.loads(told)) if told else None

    def observe(self, kind: Kind, words: str, value: str | None = None, expected: str | None = None) -> Observation:
        """An observation about this rank."""
        return self.rank_env.observe(kind, words, pid=os.getpid(), value=value, expected=expected)

    def count(self, step: str) -> bool:
        """Say that this rank has reached the step; whether it is the last one."""
        return self.store.add(f"count/{step}", 1) == self.rank_env.world_size

    def go(self, step: str, value: object) -> None:
        self.store.set(f"go/{step}", json.dumps(value).encode())

    def local_peers(self) -> list[LocalPeer]:
        """The other ranks of this host that have arrived."""
        mine = os.getpid()
        return [
            LocalPeer(r["rank"], r["pid"], r["started"], r["host"], r["local_rank"], r["node_rank"])
            for r in _lines(self.store.get(self.host))
            if r["pid"] != mine
        ]

    def missing(self) -> list[int]:
        """The ranks that never signed in."""
        arrived = {record["rank"] for record in _lines(self.store.get("arrivals"))}
        return [rank for rank in range(self.rank_env.world_size) if rank not in arrived]

    def host_of(self, rank: int) -> str | None:
        """The host of a rank that signed in."""
        record = self.store.get(f"rank/{rank}")
        host: str | None = json.loads(record)["host"] if record else None
        return host

    def publish(self, log: str, value: object) -> None:
        """Append one record to a log, without the secrets that a message or a variable may hold."""
        self.store.append(log, json.dumps(redact(encode(value))).encode() + b"\n")

    def log(self, name: str) -> list[dict[str, Any]]:
        return list(_lines(self.store.get(name)))

    def submit_report(self, report: RankReport) -> None:
        """Hand in a report; the last rank of a host puts those of its host together."""
        self.publish("through", {"rank": report.rank})
        size = self.rank_env.local_world_size or 1
        if size == 1:
            self.publish("reports", pack([report]))
            return
        node = self.host if self.rank_env.node_rank is None else f"node/{self.rank_env.node_rank}"
        self.publish(f"{node}/reports", report)
        if self.store.add(f"{node}/through", 1) == size:
            self.publish("reports", pack([decode(RankReport, each) for each in self.log(f"{node}/reports")]))

    def compare(self, traits: Mapping[str, str]) -> None:
        """Publish in what this rank differs from the first one that did."""
        traits = redact(dict(traits))
        first = json.loads(self.store.claim("alike", json.dumps(traits).encode()))
        unlike = {name: traits.get(name, "") for name in {*first, *traits} if traits.get(name) != first.get(name)}
        if unlike:
            self.publish("unlike", {"rank": self.rank_env.rank, "traits": unlike})

    def differences(self) -> tuple[dict[str, str], dict[int, dict[str, str]]]:
        """What the first rank said of itself, and in what each other one differs."""
        first = self.store.get("alike")
        return json.loads(first or b"{}"), {each["rank"]: each["traits"] for each in self.log("unlike")}

    def share(self, key: str, probe: Probe) -> None:
        """Publish a probe for all to read."""
        self.store.set(key, _packed(probe))

    def shared(self, key: str) -> Probe:
        """What was published there; all have waited for it."""
        return _unpacked(self.store.get(key))

    def fail(self, report: RankReport, observations: Iterable[Observation]) -> None:
        """Tell all ranks that something went wrong, and what was seen here; wakes whoever waits."""
        for observation in observations:
            self.publish("evidence", observation)
        self.publish("reports", pack([report]))
        self.store.add("spoken", 1)
        self.wake()

    def wake(self) -> None:
        """Call all ranks away from what they wait for, to tell what they know."""
        for step in STEPS:
            self.store.set(f"go/{step}", FAILED)

    def have_all_reported(self) -> bool:
        """Whether every rank has told what it saw of a failure."""
        return self.store.add("spoken", 0) >= self.rank_env.world_size

    def unreported(self) -> dict[str, list[int]]:
        """The ranks that signed in and told nothing of a failure, by their hosts."""
        heard = {report.rank for report in unpack(self.log("reports"))}
        hosts: dict[str, list[int]] = {}
        for record in self.log("arrivals"):
            hosts.setdefault(record["host"], []).extend([record["rank"]] if record["rank"] not in heard else ())
        return {host: sorted(ranks) for host, ranks in hosts.items() if ranks}

    def is_judge(self) -> bool:
        """Whether this rank is the first that asks: it waits for the others' evidence and gives the verdict."""
        return self.store.add("judge", 1) == 1

    def evidence(self) -> tuple[Observation, ...]:
        """What has been told so far of what went wrong."""
        return tuple(decode(Observation, record) for record in self.log("evidence"))

    def gather(self) -> tuple[tuple[Observation, ...], tuple[RankReport, ...]]:
        """All evidence so far, and how far each rank got: by its own report, else as it signed in."""
        ranks = {report.rank: report for report in unpack(self.log("reports"))}
        for r in self.log("arrivals") if len(ranks) < self.rank_env.world_size else ():
            if r["rank"] not in ranks:
                words = r["local_rank"], r["node_rank"], r["host"], None, r["world_size"]
                ranks[r["rank"]] = RankReport(r["rank"], *words, phase="join")
        for rank, traits in self.differences()[1].items():
            if rank in ranks:
                ranks[rank] = replace(ranks[rank], traits=traits)
        return self.evidence(), tuple(ranks[rank] for rank in sorted(ranks))

    def decide(self, probe: Probe) -> Probe:
        """Offer a verdict; the first one offered is everybody's."""
        return _unpacked(self.store.claim("verdict", _packed(probe)))

    def verdict(self) -> Probe | None:
        value = self.store.get("verdict")
        return _unpacked(value) if value else None


def _packed(probe: Probe) -> bytes:
    """Small, because every rank of the job reads it."""
    return zlib.compress(json.dumps(encode(probe)).encode(), 1)


def _unpacked(value: bytes) -> Probe:
    return decode(Probe, json.loads(zlib.decompress(value)))


def _lines(text: bytes) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines() if line)
