"""CUDA_VISIBLE_DEVICES: torch's CPU build asks a stand-in for NVML, and what it sees is what we see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.collectors import collect
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.visibility import visible
from ddpdoctor.system.machine import Machine

PROFILE = "h100x8_sxm_healthy"
UUIDS = [gpu["uuid"] for gpu in library.profile(PROFILE)["gpus"]]
EXAMPLES = 40 if os.environ.get("DDPDOCTOR_FULL") else 2
ORACLE = """
import json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch.cuda as cuda
told = []
for value in json.load(sys.stdin):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    try:
        count = cuda._device_count_nvml()
        told.append([cuda._get_nvml_device_index(i) for i in range(max(count, 0))])
    except ValueError:
        told.append(None)
print(json.dumps(told))
"""
ENTRIES = st.one_of(
    st.integers(-2, 10).map(str),
    st.sampled_from(UUIDS),
    st.sampled_from(UUIDS).flatmap(lambda u: st.integers(4, len(u)).map(lambda n: u[:n])),
    st.sampled_from(["", " ", " 1", "2 ", "1x", "+3", "0x1", "gpu", "GPU-", "GPU-zz", "-", "1 2", "\t4", "00", "010"]),
)
VALUES = st.lists(ENTRIES, max_size=9).map(",".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.build(library.profile(PROFILE), tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def gpu(folder: Path) -> Gpu:
    found = collect(Machine(environ={**os.environ, "LD_LIBRARY_PATH": str(folder)}), ("gpu",)).gpu
    assert found is not None
    return found


@pytest.mark.torch
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(VALUES, min_size=100, max_size=150))
def test_torch_s_nvml_path_sees_the_gpus_that_we_see(folder: Path, gpu: Gpu, values: list[str]) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps(values),
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for value, theirs in zip(values, json.loads(done.stdout), strict=True):
        if theirs is None:
            continue  # torch itself trips over a lone sign
        assert list(visible({"CUDA_VISIBLE_DEVICES": value}, gpu).devices) == theirs, repr(value)
