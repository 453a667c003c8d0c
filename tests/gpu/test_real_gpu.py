"""On a machine with an NVIDIA GPU: what we read is what nvidia-smi says."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ddpdoctor.collectors import collect
from ddpdoctor.collectors.machine import this_machine

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
