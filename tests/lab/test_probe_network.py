"""The probe on several hosts: what only their network shows, and hosts that stop, die or vanish; every host tells the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import Host, Lab, hosts
from lab.processes import Process

pytestmark = [pytest.mark.root, pytest.mark.torch]
slow = pytest.mark.slow

SECONDS = 120.0
SHIMS = str(Path(__file__).parent.parent / "probe" / "shims")
TABLE = """add table inet test
add chain inet test input { type filter hook input priority 1; }
add rule inet test input tcp dport 29500 accept
add rule inet test input tcp sport 29500 accept
"""
PROBE = ("-m", "ddpdoctor.probe", "--format", "json")


def _line(form: str, rank: int, count: int) -> list[str]:
    """How a host starts its rank: alone by the environment, or under torchrun."""
    if form == "env":
        return [sys.executable, *PROBE]
    options = ["--nnodes", str(count), "--nproc-per-node", "1"]
    if form == "static":
        options += ["--node-rank", str(rank), "--master-addr", "node0", "--master-port", "29500"]
    if form == "c10d":
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500", "--rdzv-id", "job"]
    if form == "own":
        options += ["--node-rank", str(rank), "--rdzv-endpoint", "node0:29500", "--format", "json"]
        return [sys.executable, "-m", "ddpdoctor", "probe", *options]
    return [sys.executable, "-m", "torch.distributed.run", *options, *PROBE]


class Job:
    """One rank on each host of the lab."""

    def __init__(self, lab: Lab, folder: Path, *options: str, form: str = "env", **environ: str) -> None:
        self.folder = folder
        count = len(lab.hosts)
        self.ranks: list[Process] = []
        for rank, host in enumerate(lab.hosts):
            env = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": str(count), "RANK": str(rank)}
            env = {**(env | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if form == "env" else {}), **environ}
            words = [*_line(form, rank, count), "--output", str(folder / f"{host.name}.json"), *options]
            self.ranks.append(host.start(words, env=env))

    def supervisor(self, rank: int) -> int:
        """The pid of one rank's supervisor."""
        for pid in self.ranks[rank].pids():
            if b"ddpdoctor.probe\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(self.ranks[rank].err)

    def causes(self, host: Host) -> list[tuple[str, str | None]]:
        report: dict[str, Any] = json.loads((self.folder / f"{host.name}.json").read_text())
        return [(f["code"], f["where"]["host"]) for f in report["findings"] if f["role"] == "cause"]

    def end(self, *without: int) -> list[int]:
        return [rank.wait(SECONDS) for index, rank in enumerate(self.ranks) if index not in without]


def _closed(host: Host, rule: str) -> None:
    host.tool("nft", "-f", "-", stdin=f"{TABLE}add rule inet test input {rule}\n")


def _one_way(lab: Lab) -> None:
    _closed(lab.host(1), "iif eth0 meta l4proto tcp ct state new drop")


def _both_ways(lab: Lab) -> None:
    for host in lab.hosts:
        _closed(host, "iif eth0 meta l4proto tcp drop")


def _refused(lab: Lab) -> None:
    _closed(lab.host(1), "iif eth0 meta l4proto tcp ct state new reject with tcp reset")


def _large_packets_vanish(lab: Lab) -> None:
    for host in lab.hosts:
        host.mtu(9000)


def _debian_hostname(lab: Lab) -> None:
    lab.host(1).file("hosts", "127.0.0.1 localhost\n127.0.1.1 node1\n10.77.0.1 node0\n")


def _hostname_is_of_a_bridge(lab: Lab) -> None:
    host = lab.host(1)
    host.tool("ip", "link", "add", "docker0", "type", "veth", "peer", "name", "inside")
    host.tool("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
    for name in ("docker0", "inside"):
        host.tool("ip", "link", "set", name, "up")
    host.file("hosts", "127.0.0.1 localhost\n172.17.0.1 node1\n10.77.0.1 node0\n")


FAULTS: list[tuple[Callable[[Lab], None], tuple[str, str]]] = [
    (_one_way, ("NET009", "node1")),
    (_both_ways, ("NET009", "node0")),
    (_refused, ("NET009", "node1")),
    (_large_packets_vanish, ("NET023", "node0")),
    (_debian_hostname, ("NET017", "node1")),
    (_hostname_is_of_a_bridge, ("NET024", "node1")),
]


@pytest.mark.parametrize("form", ["env", *(pytest.param(f, marks=slow) for f in ("static", "c10d", "own"))])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(f, e, id=f.__name__, marks=() if f is _one_way or f is _debian_hostname else slow)
        for f, e in FAULTS
    ],
)
def test_a_network_that_only_the_store_can_cross(
    fault: Callable[[Lab], None], expected: tuple[str, str], form: str, tmp_path: Path
) -> None:
    with hosts(2) as lab:
        fault(lab)
        job = Job(lab, tmp_path, form=form)
        assert all(code != 0 for code in job.end()), [rank.out + rank.err for rank in job.ranks]
        told = [[expected]] * 2
        if form == "c10d" and fault is _both_ways:  # torchrun's second store is behind a closed port as well
            told = [[("PROBE001", None)], [("NET011", "node1")]]
        assert [job.causes(host) for host in lab.hosts] == told


@slow
def test_two_of_three_hosts_that_do_not_reach_each_other_are_named_as_a_pair(tmp_path: Path) -> None:
    with hosts(3) as lab:
        for one, other in ((1, 2), (2, 1)):
            _closed(lab.host(one), f"ip saddr {lab.host(other).address} meta l4proto tcp drop")
        job = Job(lab, tmp_path)
        assert job.end() == [1, 1, 1]
        assert [job.causes(host) for host in lab.hosts] == [[("NET010", "node1")]] * 3


@pytest.mark.parametrize("form", [pytest.param(f, marks=slow) for f in ("static", "c10d", "own")])
def test_healthy_hosts_pass_under_every_launcher(form: str, tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path, form=form)
        assert job.end() == [0, 0], [rank.out + rank.err for rank in job.ranks]
        assert [job.causes(host) for host in lab.hosts] == [[], []]


def _stuck(lab: Lab, folder: Path) -> Job:
    """A job of three whose last rank sleeps, outside of the collective that the others wait in."""
    mark = folder / "mark"
    job = Job(lab, folder, PYTHONPATH=SHIMS, SHIM="sleep", SHIM_RANK="2", SHIM_MARK=str(mark))
    end = time.monotonic() + SECONDS
    while not mark.exists():
        assert time.monotonic() < end, [rank.out + rank.err for rank in job.ranks]
        time.sleep(0.02)
    return job


@pytest.mark.parametrize(
    ("victim", "how", "code"),
    [
        (1, signal.SIGSTOP, "PROBE007"),
        pytest.param(1, signal.SIGKILL, "PROBE006", marks=slow),
        pytest.param(0, signal.SIGSTOP, "PROBE007", marks=slow),
        pytest.param(0, signal.SIGKILL, "PROBE006", marks=slow),
    ],
)
def test_a_supervisor_on_another_host_that_stops_or_dies_is_named(
    victim: int, how: signal.Signals, code: str, tmp_path: Path
) -> None:
    with hosts(3) as lab:
        job = _stuck(lab, tmp_path)
        os.kill(job.supervisor(victim), how)
        assert job.end(victim) == [1, 1]
        others = [host for index, host in enumerate(lab.hosts) if index != victim]
        assert [job.causes(host)[:1] for host in others] == [[(code, f"node{victim}")]] * 2


@slow
def test_a_node_whose_only_supervisor_is_stopped_before_it_came_tells_it_all_the_same(tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path, form="own")
        supervisor, end = 0, time.monotonic() + SECONDS
        while not supervisor:
            assert time.monotonic() < end
            found = [pid for pid in job.ranks[1].pids() if b"ddpdoctor.probe\0" in _command(pid)]
            supervisor = found[0] if found else 0
        os.kill(supervisor, signal.SIGSTOP)
        assert job.end() == [1, 1]
        assert [job.causes(host) for host in lab.hosts] == [[("PROBE007", "node1")]] * 2


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it ended in between


@slow
def test_a_host_whose_cable_is_pulled_is_named_by_the_others_and_by_itself(tmp_path: Path) -> None:
    with hosts(3) as lab:
        job = _stuck(lab, tmp_path)
        lab.host(1).unplug()
        assert job.end() == [1, 1, 1]
        assert [job.causes(host)[:1] for host in lab.hosts] == [[("PROBE503", "node1")]] * 3


def _by_a_slow_cable(one: Host, other: Host) -> None:
    """These two get a cable of their own, for what they send each other, and it carries 16 Mbit/s."""
    one.tool("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(other.pid))
    for host in (one, other):
        host.tool("ip", "link", "set", "cable", "up")
        shape = ("tbf", "rate", "16mbit", "burst", "32kbit", "latency", "400ms")
        host.tool("tc", "qdisc", "add", "dev", "cable", "root", *shape)
    for host, peer in ((one, other), (other, one)):
        host.tool("ip", "route", "add", f"{peer.address}/32", "dev", "cable", "src", host.address)


@slow
def test_two_hosts_with_a_slow_link_between_them_are_named_and_nobody_fails(tmp_path: Path) -> None:
    with hosts(4) as lab:
        _by_a_slow_cable(lab.host(1), lab.host(2))
        job = Job(lab, tmp_path)
        assert job.end() == [0, 0, 0, 0]
        assert [job.causes(host) for host in lab.hosts] == [[("PROBE013", "node1")]] * 4


@slow
def test_a_host_that_sends_slowly_is_named_and_nobody_fails(tmp_path: Path) -> None:
    with hosts(4) as lab:
        lab.host(2).slow(16)
        job = Job(lab, tmp_path)
        assert job.end() == [0, 0, 0, 0]
        assert [job.causes(host) for host in lab.hosts] == [[("PROBE012", "node2")]] * 4
