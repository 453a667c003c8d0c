"""The probe under real launchers and on hosts of their own: healthy it passes everywhere, and every fault has a name."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import Host, Lab, hosts
from lab.mpi import hydra, openmpi
from lab.processes import Process
from lab.slurm import slurm

pytestmark = [pytest.mark.root, pytest.mark.torch]

PROBE = (sys.executable, "-m", "ddpdoctor.probe", "--format", "json")
SHELL_PROBE = f"exec {' '.join(PROBE)}"
LOOPBACK = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
HEAD = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SECONDS = 120.0
WELL_BEFORE_SECONDS = 25.0
"""Ranks that were told to wait for 4 s end so early at the latest on a busy machine: without being told they wait for 30 s."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with hosts(2) as lab:
        yield lab


def _start(host: Host, rank: int, world_size: int, folder: Path, *options: str) -> Process:
    env = {**HEAD, "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    return host.start([*PROBE, "--output", str(folder / f"{rank}.json"), *options], env=env)


def _report(folder: Path, name: object) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def _causes(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["role"] == "cause"]


def _worker(process: Process, seconds: float = 30) -> int:
    """The pid of the one process of a rank that imports torch, as soon as it is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in process.pids():
            try:
                if b"ddpdoctor.probe.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in between
        time.sleep(0.01)
    raise AssertionError(f"no worker came up:\n{process.out}\n{process.err}")


def test_srun_on_virtual_nodes(tmp_path: Path) -> None:
    with slurm(nodes=2) as cluster:
        line = f"{SHELL_PROBE} --output {tmp_path}/$SLURM_NODEID.json"
        done = cluster.srun("-N2", "--ntasks-per-node=2", "sh", "-c", line, timeout=SECONDS, env=LOOPBACK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ranks" in done.stdout
    assert _report(tmp_path, 0)["verdict"] == "pass"


@pytest.mark.slow
def test_srun_on_hosts_of_their_own(tmp_path: Path) -> None:
    with slurm(nodes=2, own_hosts=True) as cluster:
        line = f"{SHELL_PROBE} --output {tmp_path}/$SLURM_NODEID.json"
        done = cluster.srun("-N2", "--ntasks-per-node=2", "sh", "-c", line, timeout=SECONDS, env=HEAD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [_report(tmp_path, node)["verdict"] for node in (0, 1)] == ["pass", "pass"]
    assert [_report(tmp_path, node)["host"] for node in (0, 1)] == ["node0", "node1"]


@pytest.mark.slow
def test_srun_names_a_task_that_never_becomes_a_probe(tmp_path: Path) -> None:
    with slurm(nodes=2, own_hosts=True) as cluster:
        line = f'[ "$SLURM_PROCID" = 3 ] && exec sleep 600; {SHELL_PROBE} --join-timeout 6'
        line += f" --output {tmp_path}/$SLURM_NODEID.json"
        options = ("-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=0", "--wait=5")
        done = cluster.srun(*options, "sh", "-c", line, timeout=SECONDS, env=HEAD)
    assert done.returncode != 0
    for node in (0, 1):
        report = _report(tmp_path, node)
        assert [(cause["code"], cause["ranks"]) for cause in _causes(report)] == [("PROBE001", [3])], report["findings"]


@pytest.mark.parametrize("launch", [openmpi, hydra])
def test_mpi_launchers(launch: Any, tmp_path: Path) -> None:
    with hosts(1) as lab:
        done = launch(lab.host(0), 2, [*PROBE, "--output", str(tmp_path / "r.json")], timeout=SECONDS, env=LOOPBACK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # Open MPI gives its ranks a terminal: with colours
    assert _report(tmp_path, "r")["verdict"] == "pass"


def test_two_hosts_pass_and_write_their_reports(lab: Lab, tmp_path: Path) -> None:
    ranks = [_start(host, rank, 2, tmp_path) for rank, host in enumerate(lab.hosts)]
    assert [rank.wait(SECONDS) for rank in ranks] == [0, 0], [rank.out + rank.err for rank in ranks]
    for rank, host in enumerate(lab.hosts):
        report = _report(tmp_path, rank)
        assert (report["verdict"], report["host"], report["findings"]) == ("pass", host.name, [])


def test_a_rank_that_never_starts_is_named_on_every_living_host(tmp_path: Path) -> None:
    with hosts(3) as lab:
        started = time.monotonic()
        ranks = [_start(lab.host(rank), rank, 3, tmp_path, "--join-timeout", "4") for rank in (0, 1)]
        codes = [rank.wait(SECONDS) for rank in ranks]
        seconds = time.monotonic() - started
    assert codes == [1, 1], [rank.out + rank.err for rank in ranks]
    assert seconds < WELL_BEFORE_SECONDS
    for rank in (0, 1):
        report = _report(tmp_path, rank)
        (cause,) = _causes(report)
        assert report["seconds"] < WELL_BEFORE_SECONDS
        assert (cause["code"], cause["ranks"], cause["where"]["rank"]) == ("PROBE001", [2], 2)


@pytest.mark.slow
def test_a_head_that_never_starts_is_named(tmp_path: Path) -> None:
    with hosts(3) as lab:
        started = time.monotonic()
        ranks = {rank: _start(lab.host(rank), rank, 3, tmp_path, "--join-timeout", "4") for rank in (1, 2)}
        codes = [rank.wait(SECONDS) for rank in ranks.values()]
        seconds = time.monotonic() - started
    assert codes == [1, 1], [rank.out + rank.err for rank in ranks.values()]
    assert seconds < WELL_BEFORE_SECONDS
    for rank in ranks:
        report = _report(tmp_path, rank)
        (cause,) = _causes(report)
        assert report["seconds"] < WELL_BEFORE_SECONDS
        assert cause["where"]["rank"] == 0, cause


@pytest.mark.parametrize(
    ("how", "victim"),
    [
        pytest.param(signal.SIGSTOP, 1, id="stopped-1"),
        pytest.param(signal.SIGSTOP, 0, id="stopped-0", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 0, id="killed-0", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 1, id="killed-1", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_hurt_is_named_with_its_host_on_both(
    lab: Lab, tmp_path: Path, victim: int, how: signal.Signals
) -> None:
    ranks = [_start(host, rank, 2, tmp_path) for rank, host in enumerate(lab.hosts)]
    os.kill(_worker(ranks[victim]), how)
    assert [rank.wait(SECONDS) for rank in ranks] == [1, 1], [rank.out + rank.err for rank in ranks]
    for rank in range(2):
        (cause,) = _causes(_report(tmp_path, rank))
        assert (cause["where"]["rank"], cause["where"]["host"]) == (victim, f"node{victim}"), cause
        assert cause["ranks"] == [victim]


@pytest.mark.parametrize("verdict", ["drop", pytest.param("reject", marks=pytest.mark.slow)])
def test_a_firewall_before_the_master_port_is_told_by_the_side_that_cannot_pass(
    lab: Lab, tmp_path: Path, verdict: str
) -> None:
    getattr(lab.host(0), verdict)(port=29500, peer=lab.host(1))
    ranks = [_start(host, rank, 2, tmp_path, "--join-timeout", "4") for rank, host in enumerate(lab.hosts)]
    assert [rank.wait(SECONDS) for rank in ranks] == [1, 1], [rank.out + rank.err for rank in ranks]
    (outside,) = _causes(_report(tmp_path, 1))
    assert "29500" in json.dumps(outside), outside
    (inside,) = _causes(_report(tmp_path, 0))
    assert inside["ranks"] == [1], inside


def test_nobody_is_left_after_a_probe(lab: Lab, tmp_path: Path) -> None:
    ranks = [_start(host, rank, 2, tmp_path) for rank, host in enumerate(lab.hosts)]
    os.kill(_worker(ranks[1]), signal.SIGSTOP)
    for rank in ranks:
        rank.wait(SECONDS)
        assert rank.pids() == []
