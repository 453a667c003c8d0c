"""`check -- LINE`: the line is held against this machine: its GPUs, and what listens on the port of its store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import inside
from launches import TRAIN
from machines import machine

from ddpdoctor.app.lint_lines import environ_of, rules_of
from ddpdoctor.app.preflight import here
from ddpdoctor.app.request import Request
from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.engine import judge
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.system.machine import Machine

CUDA = 'import os, torch\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("torchrun --nproc_per_node=16 cuda.py", ["LAUNCH023"]),
        ("torchrun --nproc_per_node=8 cuda.py", []),
        ("torchrun --nproc_per_node=16 train.py", []),
        ("torchrun cuda.py", ["LAUNCH024"]),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=4 cuda.py", ["LAUNCH023"]),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 cuda.py", []),
    ],
)
def test_the_ranks_of_the_line_are_held_against_the_gpus_that_are_here(
    line: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cuda.py").write_text(CUDA)
    (tmp_path / "train.py").write_text(TRAIN)
    launch = collect_launch(Machine(environ={}), [line], torch="2.13", cwd=str(tmp_path))
    facts = Facts(SCHEMA, "", "here", environ=environ_of(launch), launch=launch)
    outcome = judge(here(facts, machine("h100x8_sxm_healthy")), rules_of(Request()))
    assert not outcome.crashed
    assert sorted(f.code for f in outcome.findings) == found


@pytest.mark.torch
@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node=2 --master_port={} train.py",
        "torchrun --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:{} train.py",
        "accelerate launch --num_processes 2 --main_process_port {} train.py",
    ],
)
def test_a_port_that_something_listens_on_is_taken_and_another_one_is_given(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    listen = "import socket; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = other.stdout.readline().strip()
        words = ("check", "--no-probe", "--no-meet", "--select", "NET001,LAUNCH0", "--format", "json", "--")
        done = inside(*words, *line.format(port).split(), cwd=tmp_path)
        other.communicate("\n", timeout=30)
    (found,) = json.loads(done.stdout)["findings"]
    assert found["code"] == "NET001"
    before, after = line.split("{}")
    assert found["fix_command"].startswith(before)
    assert found["fix_command"].endswith(after)
    assert port not in found["fix_command"]
