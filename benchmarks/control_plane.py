"""The probe's control plane with as many hosts as a large cluster has: join, facts, verdict, and 100,000 ranks judged.

python benchmarks/control_plane.py [--hosts 2048,12500] [--store ours,torch]

Each host is one connection that sends what the supervisor of a host sends (written down by the supervisor's own code); two
processes drive them all, on this machine's cores and beside the store. torch's store looks up the name of every client, one
after the other (`ddpdoctor explain NET020`): so that no resolver is measured, all runs in a network namespace of its own,
where a lookup fails at once. The limits are for 2 cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from ddpdoctor.facts.probe import Probe, RankReport
from ddpdoctor.network.tcpstore.client import Store
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.network.tcpstore.wire import MAGIC, NUMBER, READY, SIGNED, StoreOp
from ddpdoctor.network.tcpstore.wire import pack as pack_texts
from ddpdoctor.probe.host_reports import pack, shown_reports, unpack
from ddpdoctor.probe.hosts import HostCard
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

RANKS = 8
DRIVERS = 2
LIMITS = {2048: 1.0, 12500: 5.0}
JUDGED_SECONDS, JUDGED_GIB = 3.0, 1.5
TRAITS = {"versions.torch": "2.13.0+cu129", "versions.nccl": "2.27.5", "gpu.count": "8"}


def reports(host: int) -> list[RankReport]:
    """What the ranks of one host hand in."""
    return [
        RankReport(
            rank=host * RANKS + local,
            local_rank=local,
            node_rank=host,
            host=f"node{host:05d}",
            pid=4000 + local,
            gpu_uuid=f"GPU-{host:08x}-{local:04x}-4000-8000-000000000000",
            cuda_ordinal=local,
            torch="2.13.0+cu129",
            nccl="2.27.5",
            phase="done",
            seconds=9.0 + local / 100,
            import_seconds=4.0 + local / 100,
            waited_seconds=1.5,
            took={"barrier": 0.01, "all_reduce": 0.02},
        )
        for local in range(RANKS)
    ]


class Written(Store):
    """A store that records what a supervisor would send and then read; it answers as in a healthy job."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.is_lost = False
        self.sent = bytearray()
        self.reads: list[int] = []
        """Sizes of the answers; 0 for one that carries its own."""
        self._answer = b""

    def _send(self, request: bytes) -> None:
        self.sent += request
        op = request[0]
        if op == StoreOp.COMPARE_SET:
            value = request.rpartition(NUMBER.pack(0))[2][NUMBER.size :]
            self._answer, read = NUMBER.pack(len(value)) + value, 0
        else:
            self._answer = {StoreOp.ADD: SIGNED.pack(1), StoreOp.PING: request[1:]}.get(op, b"")
            read = len(self._answer)
        if self._answer:
            self.reads.append(read)

    def _receive(self, size: int) -> bytes:
        answer, self._answer = self._answer[:size], self._answer[size:]
        return answer


class Leader:
    """The connection of one host: it sends what a supervisor sends, and reads the answers when all hosts have sent."""

    def __init__(self, host: int, count: int, port: int) -> None:
        self.host = host
        self.rank_env = RankEnv(
            "torchrun", host, count, 0, 1, host, "127.0.0.1", port, True, "ddpdoctor/bench/", f"node{host:05d}"
        )
        self.link = socket.create_connection(("127.0.0.1", port), 120.0)
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link.sendall(bytes([StoreOp.VALIDATE]) + MAGIC)
        self.reads: list[int] = []
        self.sent = b""
        self.answers = self.link.makefile("rb")

    def prepare(self, act: Callable[[StoreKeys, int], None]) -> None:
        """Record everything that the act sends: each host does that on its own, before the clock starts."""
        store = Written(self.rank_env.prefix)
        store_keys = StoreKeys(store, self.rank_env)
        store_keys.host = f"host/{self.host}"
        act(store_keys, self.host)
        self.reads, self.sent = store.reads, bytes(store.sent)

    def is_last(self) -> bool:
        """Read the answers; whether the last of them, a count, says that all hosts are there."""
        for size in self.reads:
            answer = self.answers.read(size or NUMBER.unpack(self.answers.read(NUMBER.size))[0])
        return int(SIGNED.unpack(answer)[0]) == self.rank_env.world_size

    def ask(self) -> StoreKeys:
        """A connection as in the product."""
        link = socket.create_connection(self.link.getpeername()[:2], 120.0)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return StoreKeys(Store(link, self.rank_env.prefix, 120.0), self.rank_env)


def join(store_keys: StoreKeys, host: int) -> None:
    """Register, represent the host, and count."""
    assert store_keys.store.ping()
    store_keys.arrive()
    store_keys.is_first_of_host()
    store_keys.next_host()
    store_keys.post(
        HostCard(host, f"node{host:05d}", host, 1, host, 0, "10.0.0.1", 40000, "0" * 16, "10.0.0.1", "hostname")
    )
    store_keys.count("join")


def tell(store_keys: StoreKeys, host: int) -> None:
    """Compare, hand in the ranks' reports as one record, and count."""
    store_keys.compare(TRAITS)
    store_keys.publish("reports", pack(reports(host)))
    store_keys.count("end")


def judge_all(store_keys: StoreKeys) -> None:
    """What the last host does for all."""
    ranks = store_keys.gather()[1]
    assert len(ranks) == store_keys.rank_env.world_size * RANKS
    store_keys.share("healthy", Probe(world_size=len(ranks), ranks=shown_reports(ranks)))
    store_keys.go("end", True)


def drive(hosts: range, count: int, port: int, pipe: Connection) -> None:
    """Half of the hosts: each phase when the other half is ready for it."""
    leaders = [Leader(host, count, port) for host in hosts]
    for act, step in ((join, "join"), (tell, "end")):
        for each in leaders:
            each.prepare(act)
        pipe.send("prepared")
        pipe.recv()
        for each in leaders:
            each.link.sendall(each.sent)
        last = [each for each in leaders if each.is_last()]
        wait = bytes([StoreOp.WAIT]) + NUMBER.pack(1) + pack_texts(f"ddpdoctor/bench/go/{step}".encode())
        for each in last:
            judge_all(each.ask()) if step == "end" else each.ask().go("join", True)
        for each in leaders:
            each.link.sendall(wait)
        for each in leaders:
            assert each.answers.read(1)[0] == READY
        pipe.send("done")
    pipe.recv()
    get = bytes([StoreOp.GET]) + pack_texts(b"ddpdoctor/bench/healthy")
    for each in leaders:
        each.link.sendall(get)
    for each in leaders:
        each.answers.read(NUMBER.unpack(each.answers.read(NUMBER.size))[0])
    pipe.send("done")
    os._exit(0)


def control_plane(count: int, kind: str) -> tuple[float, float, float]:
    """Seconds of join, of facts with the verdict, and of reading it everywhere."""
    if kind == "torch":
        from torch.distributed import TCPStore

        server: Any = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    else:
        server = Server("127.0.0.1", 0)
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(DRIVERS)]
    shares = [range(i * count // DRIVERS, (i + 1) * count // DRIVERS) for i in range(DRIVERS)]
    drivers = [
        context.Process(target=drive, args=(share, count, server.port, end[1]))
        for share, end in zip(shares, ends, strict=True)
    ]
    for driver in drivers:
        driver.start()
    times = []
    for phase in ("join", "facts", "read"):
        for end, _ in ends if phase != "read" else ():
            assert end.recv() == "prepared"
        started = time.perf_counter()
        for end, _ in ends:
            end.send("go")
        for end, _ in ends:
            assert end.recv() == "done"
        times.append(time.perf_counter() - started)
    for driver in drivers:
        driver.join()
    return times[0], times[1], times[2]


def judged(ranks: int) -> tuple[float, float]:
    """Seconds to decode and judge the records of so many ranks, and the GiB that it took, in a process of its own."""
    pipe, other = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=judge, args=(ranks, other))
    child.start()
    seconds, gib = pipe.recv()
    child.join()
    return seconds, gib


def judge(ranks: int, pipe: Connection) -> None:
    """As the last rank and the process that writes the report do it, but with every rank in the report."""
    from ddpdoctor.engine import examine
    from ddpdoctor.facts.record import SCHEMA, Facts
    from ddpdoctor.rules import load

    log = [json.dumps(pack(reports(host))).encode() for host in range(ranks // RANKS)]
    rules = [rule for rule in load(("environ", "net", "gpu", "probe")) if set(rule.needs) <= {"probe"}]
    rules = [rule for rule in rules if "probe" in (*rule.needs, *rule.wants)]
    started = time.perf_counter()
    probe = Probe(world_size=ranks, backend="nccl", ranks=tuple(unpack(json.loads(line) for line in log)))
    facts = Facts(schema=SCHEMA, collected_at="2026-11-21T00:00:00Z", hostname="node00000", probe=probe)
    report = examine(facts, rules, command="probe", started=time.monotonic())
    seconds = time.perf_counter() - started
    assert not report.findings, report.findings[0]
    assert len(shown_reports(probe.ranks)) < 1000
    pipe.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)))


def main() -> int:
    """Print the tables; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="2048,12500")
    parser.add_argument("--store", default="torch,ours")
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--is-apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.is_apart:
        own = [sys.executable, *sys.argv, "--is-apart"]
        os.execvp("unshare", ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *own])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broken = 0
    print(f"{'hosts':>6} {'store':6} {'join':>7} {'facts':>7} {'read':>7} {'all':>7} {'limit':>6}")
    for count in map(int, options.hosts.split(",")):
        for kind in options.store.split(","):
            times = control_plane(count, kind)
            limit = LIMITS.get(count, 5.0)
            broken += sum(times) > limit
            print(
                f"{count:6} {kind:6} " + " ".join(f"{t:6.2f}s" for t in (*times, sum(times))) + f" {limit:5.1f}s",
                flush=True,
            )
    seconds, gib = judged(options.ranks)
    broken += seconds > JUDGED_SECONDS or gib > JUDGED_GIB
    print(
        f"{options.ranks} ranks decoded and judged: {seconds:.2f} s of {JUDGED_SECONDS}, {gib:.2f} GiB of {JUDGED_GIB}"
    )
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
