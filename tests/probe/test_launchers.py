"""The probe under real launchers: torchrun, Open MPI and MPICH where they are installed, and the doctor's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import causes, free_port, left_over, shim, wait_for

pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ddpdoctor.probe"]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _environ(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "PET_", "SLURM"))} | more


def _run(words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=90, env=_environ(**more))


def test_torchrun_healthy(tmp_path: Path) -> None:
    done = _run([*TORCHRUN, "--output", str(tmp_path / "r.json"), "--format", "json"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "pass"
    assert done.stdout.count("backend gloo") == 1, "one table"


@pytest.mark.slow
def test_the_old_launcher_adds_a_local_rank() -> None:
    words = [
        "-m",
        "torch.distributed.launch",
        "--nproc-per-node=2",
        f"--master-port={free_port()}",
        "-m",
        "ddpdoctor.probe",
    ]
    done = _run([sys.executable, *words])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("backend gloo") == 1


def test_torchrun_tells_the_rank_that_failed_in_its_own_summary(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    done = _run([*TORCHRUN, "--output", str(output), "--format", "json"], **shim("raise", 1))
    assert done.returncode == 1
    assert causes(json.loads(output.read_text())) == [("PROBE006", 1)]
    assert "traceback : ddpdoctor probe: rank 1 on " in done.stderr


def _mpi(launcher: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    options = ["--oversubscribe", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"]
    line = [launcher, *(options if "openmpi" in launcher else []), "-n", "2", sys.executable, "-m", "ddpdoctor.probe"]
    return _run([*line, *words], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **ROOT, **more)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpiexec.hydra"])
def test_mpi_launchers(launcher: str) -> None:
    done = _mpi(launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("backend gloo") == 1


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpiexec.hydra"])
def test_mpi_launchers_end_no_rank_before_the_report_is_written(launcher: str, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    done = _mpi(launcher, "--output", str(output), "--format", "json", **shim("raise", 1))
    assert done.returncode != 0
    assert causes(json.loads(output.read_text())) == [("PROBE006", 1)]
    assert "illegal memory access" in " ".join(done.stdout.split())  # Open MPI gives it a terminal, and lines wrap


def test_the_doctors_own_launcher_passes_and_names_a_node_that_never_comes(tmp_path: Path) -> None:
    doctor = [sys.executable, "-m", "ddpdoctor", "probe"]
    assert _run([*doctor, "--nproc-per-node", "2"]).returncode == 0
    output = tmp_path / "r.json"
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "0.0.0.0", "--master-port", str(free_port())]
    done = _run([*doctor, *words, "--join-timeout", "2", "--output", str(output), "--format", "json"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert causes(json.loads(output.read_text())) == [("PROBE001", 1)]


def test_ctrl_c_ends_the_doctors_own_launcher() -> None:
    doctor = [sys.executable, "-m", "ddpdoctor", "probe"]
    running = subprocess.Popen(doctor, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environ())
    time.sleep(1.5)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=20)
    assert running.returncode == 130, out
    assert "Traceback" not in out


@pytest.mark.slow
def test_ranks_end_with_the_launcher_that_was_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    doctor = [sys.executable, "-m", "ddpdoctor", "probe"]
    running = subprocess.Popen(
        doctor, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=_environ(**shim("import-sleep", 0, mark))
    )
    wait_for(mark.exists)
    running.kill()
    running.wait()
    wait_for(lambda: not left_over(str(mark)), 5.0)


def test_without_a_launcher_it_says_what_to_type() -> None:
    clean = {k: v for k, v in _environ().items() if k not in ("RANK", "WORLD_SIZE")}
    words = [sys.executable, "-m", "ddpdoctor.probe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=clean)
    assert done.returncode == 2
    assert "torchrun" in done.stderr
