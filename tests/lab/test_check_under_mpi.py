"""`mpirun ddpdoctor check` over two hosts: all ranks meet, one node tells in full, and a closed port has its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import hosts
from lab.mpi import hydra_over_all, openmpi_over_all, remote_shell

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.slow]

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
LAUNCHERS = pytest.mark.parametrize("launch", [openmpi_over_all, hydra_over_all], ids=["Open MPI", "MPICH"])


def _check(
    launch: Callable[..., Any], folder: Path, *options: str, is_closed: bool = False
) -> tuple[int, dict[str, Any]]:
    report = folder / "report.json"
    words = [sys.executable, "-m", "ddpdoctor", "check", *options, "--format", "json", "--output", str(report)]
    with hosts(2) as lab, remote_shell(lab, folder) as shell:
        if is_closed:
            lab.host(0).drop(port=29500, peer=lab.host(1))
        done = launch(lab, shell, [*words, "--join-timeout", "20"], each=2, timeout=150, env=MASTER)
    return done.returncode, json.loads(report.read_text())


@LAUNCHERS
def test_ranks_on_two_hosts_pass(launch: Callable[..., Any], tmp_path: Path) -> None:
    code, report = _check(launch, tmp_path)
    assert code == 0
    assert not [finding for finding in report["findings"] if finding["severity"] != "note"]
    assert "PROBE018" in report["passed"]


@LAUNCHERS
def test_a_port_that_is_closed_to_the_other_host_is_named(launch: Callable[..., Any], tmp_path: Path) -> None:
    code, report = _check(launch, tmp_path, "--no-probe", is_closed=True)
    first = report["findings"][0]
    assert code == 1
    assert (first["code"], first["where"]["host"], first["where"]["peer"]) == ("NET007", "node0", "node1")
