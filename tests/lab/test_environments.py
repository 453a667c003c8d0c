"""`ddpdoctor env` under real launchers that did everything right: it names the launcher and finds nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab.hosts import hosts
from lab.mpi import hydra, openmpi
from lab.slurm import slurm

pytestmark = pytest.mark.root

ENV = ("-m", "ddpdoctor", "env", "--fail-on", "never")
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SECONDS = 60.0

Launch = Callable[[tuple[str, ...]], str]


def _srun(words: tuple[str, ...]) -> str:
    with slurm(nodes=2, own_hosts=True) as cluster:
        line = ("-N2", "--ntasks-per-node=2", sys.executable, *words)
        done = cluster.srun(*line, timeout=SECONDS, env=MASTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _srun_on_virtual_nodes(words: tuple[str, ...]) -> str:
    with slurm(nodes=1) as cluster:
        line = ("-N1", "--ntasks-per-node=2", sys.executable, *words)
        done = cluster.srun(*line, timeout=SECONDS, env={**MASTER, "MASTER_ADDR": "127.0.0.1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def _sbatch(words: tuple[str, ...]) -> str:
    with slurm(nodes=2, own_hosts=True) as cluster:
        body = " ".join((sys.executable, *words))
        done = cluster.sbatch(body, "-N2", "--ntasks-per-node=2", timeout=SECONDS, env=MASTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _openmpi(words: tuple[str, ...]) -> str:
    with hosts(1) as lab:
        done = openmpi(lab.host(0), 2, [sys.executable, *words], timeout=SECONDS, env=MASTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _hydra(words: tuple[str, ...]) -> str:
    with hosts(1) as lab:
        done = hydra(lab.host(0), 2, [sys.executable, *words], timeout=SECONDS, env=MASTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _torchrun(words: tuple[str, ...]) -> str:
    with hosts(1) as lab:
        line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *words]
        done = lab.host(0).run(line, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


LAUNCHERS = [
    pytest.param(_srun, "srun", id="srun"),
    pytest.param(_srun_on_virtual_nodes, "srun", id="srun on loopback"),
    pytest.param(_sbatch, "No launcher started this process inside a Slurm job", id="sbatch body"),
    pytest.param(_openmpi, "Open MPI", id="mpirun"),
    pytest.param(_hydra, "MPICH", id="mpiexec"),
    pytest.param(_torchrun, "torchrun", id="torchrun", marks=pytest.mark.torch),
]


def _reports(text: str) -> list[dict[str, Any]]:
    """The reports that the ranks wrote one after the other; what one writes is not torn up by another's."""
    decoder, found, at = json.JSONDecoder(), [], text.find("{")
    while at != -1:
        report, end = decoder.raw_decode(text, at)
        found.append(report)
        at = text.find("{", end)
    return found


@pytest.mark.parametrize(("launch", "title"), LAUNCHERS)
def test_a_healthy_launch_has_no_finding(launch: Launch, title: str) -> None:
    reports = _reports(launch((*ENV, "--format", "json")))
    assert reports
    for report in reports:
        loud = [finding for finding in report["findings"] if finding["severity"] in ("error", "warning")]
        assert loud == []
        assert report["crashed"] == []


@pytest.mark.parametrize(("launch", "title"), LAUNCHERS)
def test_the_table_names_the_launcher(launch: Launch, title: str) -> None:
    assert title in " ".join(launch(ENV).split())
