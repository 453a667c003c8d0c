"""On a machine with an NVIDIA GPU: what we read is what nvidia-smi says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.collectors import collect
from ddpdoctor.facts.visibility import visible
from ddpdoctor.system.machine import this_machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here"),
]


def _smi(*words: str) -> list[str]:
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_devices_are_those_of_nvidia_smi() -> None:
    gpu = collect(this_machine(), ("gpu",)).gpu
    assert gpu is not None
    rows = _smi("--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader")
    assert [f"{d.index}, {d.uuid}, {d.name}, {gpu.driver_version}" for d in gpu.devices] == rows


def test_the_matrix_is_that_of_nvidia_smi() -> None:
    topo = collect(this_machine(), ("topo",)).topo
    assert topo is not None
    rows = [line.split() for line in _smi("topo", "-m") if line.startswith("GPU")]
    ours = {f"GPU{i}": row for i, row in enumerate(topo.matrix()[: len(topo.gpus)])}
    for name, *cells in rows:
        assert tuple(cells[: len(topo.gpus)]) == ours[name][: len(topo.gpus)]


def _has_cuda_torch() -> bool:
    code = (
        "import torch, sys; sys.exit(0 if torch.cuda.is_available() and torch.distributed.is_nccl_available() else 1)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0


@pytest.fixture(scope="module")
def cuda_torch() -> None:
    if not _has_cuda_torch():
        pytest.skip("this torch has no CUDA or no NCCL")


def test_what_is_known_of_a_healthy_gpu() -> None:
    gpu = collect(this_machine(), ("gpu",)).gpu
    assert gpu is not None
    assert gpu.cuda_error == 0
    for device in gpu.devices:
        assert device.error is None
        assert device.memory_total_bytes
        assert device.temperature_celsius
        assert device.later is not None
        assert "WRONG_VALUE" not in device.absent.values()


@pytest.mark.parametrize("form", ["0", "{uuid}", "{uuid:.12}", "-1", "", "0,0", "0,99", "99", " 0", "0x"])
def test_cuda_sees_the_gpus_that_we_say_it_sees(form: str, cuda_torch: None) -> None:
    gpu = collect(this_machine(), ("gpu",)).gpu
    assert gpu is not None
    value = form.format(uuid=gpu.devices[0].uuid)
    code = "import torch; print(torch.cuda.device_count())"
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    assert visible({"CUDA_VISIBLE_DEVICES": value}, gpu).count == int(done.stdout)


def _probe(ranks: int, folder: Path, **environ: str) -> tuple[int, dict[str, Any]]:
    output = folder / "report.json"
    line = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", "-m", "ddpdoctor.probe", "--backend", "nccl"]
    done = subprocess.run(
        [*line, "--output", str(output)], env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, json.loads(output.read_text())


def test_nccl_with_one_rank_passes(tmp_path: Path, cuda_torch: None) -> None:
    code, report = _probe(1, tmp_path)
    assert (code, report["verdict"]) == (0, "pass"), report["findings"]


def test_two_ranks_on_one_gpu_are_named(tmp_path: Path, cuda_torch: None) -> None:
    code, report = _probe(2, tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert code != 0
    assert {"GPU005", "LAUNCH023", "LOG020"} & {finding["code"] for finding in report["findings"]}
