"""`ddpdoctor env` under real launchers that did everything right: it names the launcher and finds nothing."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from lab.hosts import hosts
from lab.mpi import hydra, openmpi
from lab.slurm import slurm

pytestmark = pytest.mark.root

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SECONDS = 60.0

Launch = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def _srun(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with slurm(nodes=2, own_hosts=True) as cluster:
        return cluster.srun("-N2", "--ntasks-per-node=2", *argv, timeout=SECONDS, env=MASTER)


def _srun_on_virtual_nodes(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with slurm(nodes=2) as cluster:
        return cluster.srun(
            "-N2", "--ntasks-per-node=2", *argv, timeout=SECONDS, env={**MASTER, "MASTER_ADDR": "127.0.0.1"}
        )


def _sbatch(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with slurm(nodes=2, own_hosts=True) as cluster:
        return cluster.sbatch(shlex.join(argv), "-N2", "--ntasks-per-node=2", timeout=SECONDS, env=MASTER)


def _openmpi(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with hosts(1) as lab:
        return openmpi(lab.host(0), 2, argv, timeout=SECONDS, env=MASTER)


def _hydra(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with hosts(1) as lab:
        return hydra(lab.host(0), 2, argv, timeout=SECONDS, env=MASTER)


def _torchrun(argv: list[str]) -> subprocess.CompletedProcess[str]:
    with hosts(1) as lab:
        line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", *argv]
        return lab.host(0).run(line, timeout=SECONDS)


LAUNCHERS = [
    pytest.param(_srun, 4, "Slurm (srun)", id="srun", marks=pytest.mark.slow),
    pytest.param(_srun_on_virtual_nodes, 4, "Slurm (srun)", id="srun on loopback", marks=pytest.mark.slow),
    pytest.param(
        _sbatch, 1, "No launcher started this process inside a Slurm job", id="sbatch body", marks=pytest.mark.slow
    ),
    pytest.param(_openmpi, 2, "Open MPI", id="mpirun"),
    pytest.param(_hydra, 2, "MPICH", id="mpiexec"),
    pytest.param(_torchrun, 2, "torchrun", id="torchrun", marks=pytest.mark.torch),
]


def _in_full(case: ParameterSet) -> ParameterSet:
    """The same case, for `make test-all` alone."""
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])


def _said(launch: Launch, folder: Path, *options: str) -> list[str]:
    """What `ddpdoctor env` printed in each rank; a file each, for launchers mix what their ranks print."""
    each = 'exec "$@" > "$(mktemp "$0/XXXXXXXX")"'  # not $$, which torchrun makes $ of
    words = [sys.executable, "-m", "ddpdoctor", "env", "--fail-on", "never", *options]
    done = launch(["sh", "-c", each, str(folder), *words])
    assert done.returncode == 0, done.stderr
    return [path.read_text() for path in folder.iterdir()]


@pytest.mark.parametrize(("launch", "ranks", "title"), LAUNCHERS)
def test_a_healthy_launch_has_no_finding(launch: Launch, ranks: int, title: str, tmp_path: Path) -> None:
    reports = [json.loads(text) for text in _said(launch, tmp_path, "--format", "json")]
    assert len(reports) == ranks
    for report in reports:
        assert [finding for finding in report["findings"] if finding["severity"] in ("error", "warning")] == []
        assert report["crashed"] == []


@pytest.mark.parametrize(
    ("launch", "ranks", "title"), LAUNCHERS[3:4] + [_in_full(case) for at, case in enumerate(LAUNCHERS) if at != 3]
)
def test_the_table_names_the_launcher(launch: Launch, ranks: int, title: str, tmp_path: Path) -> None:
    tables = _said(launch, tmp_path)
    assert len(tables) == ranks
    for table in tables:
        assert title in " ".join(table.split())
