"""Logs of jobs that really failed: torchrun and plain env://, with faults in the script; what triage says of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor, environment

pytestmark = pytest.mark.torch

SECONDS = 90
SCRIPT = """
import datetime, os, signal, sys
import torch, torch.distributed as dist

def load(rank, fault):
    if fault == "early" and rank == 1:
        raise FileNotFoundError("/data/train.bin")

def train(rank, fault):
    x = torch.ones(8)
    if fault == "raise" and rank == 1:
        raise ValueError("loss is nan")
    if fault == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "order" and rank == 1:
        dist.broadcast(x, 0)
    dist.all_reduce(x)
    dist.barrier()

fault, rank = os.environ["FAULT"], int(os.environ["RANK"])
load(rank, fault)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
train(rank, fault)
dist.destroy_process_group()
"""


def _torchrun(folder: Path, fault: str) -> str:
    """The output of `torchrun --nproc-per-node 3` with this fault, in a file."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    log = folder / "torchrun.txt"
    with log.open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(script)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment({"FAULT": fault, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}),
            cwd=folder,
            timeout=SECONDS,
        )
    return str(log)


def _by_hand(folder: Path, fault: str) -> str:
    """Three ranks started without a launcher, one file each."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    logs = folder / "logs"
    logs.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    for rank in range(3):
        env = environment({"FAULT": fault, "RANK": str(rank), "OMP_NUM_THREADS": "1", **world})
        with (logs / f"rank{rank}.txt").open("wb") as out:
            started.append(
                subprocess.Popen(
                    [sys.executable, str(script)], stdout=out, stderr=subprocess.STDOUT, env=env, cwd=folder
                )
            )
    try:
        for each in started:
            each.wait(SECONDS)
    finally:
        for each in started:
            each.kill()
            each.wait()
    return str(logs)


def _first(path: str) -> dict[str, Any]:
    done = doctor("triage", path, "--format", "json")
    assert done.returncode == 1, done.stdout[-2000:]
    first: dict[str, Any] = json.loads(done.stdout)["findings"][0]
    return first


def _line(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def test_a_rank_that_raised_under_torchrun_is_named_with_its_line(tmp_path: Path) -> None:
    first = _first(_torchrun(tmp_path, "raise"))
    assert (first["code"], first["ranks"], first["where"]["line"]) == ("PROBE006", [1], _line("loss is nan"))
    assert os.path.basename(first["where"]["file"]) == "train.py"


@pytest.mark.slow
def test_a_rank_that_was_killed_under_torchrun_is_named(tmp_path: Path) -> None:
    first = _first(_torchrun(tmp_path, "kill"))
    assert (first["code"], first["ranks"]) == ("LOG021", [1])


@pytest.mark.slow
def test_a_rank_that_raised_before_it_joined_is_named(tmp_path: Path) -> None:
    first = _first(_by_hand(tmp_path, "early"))
    assert (first["code"], first["ranks"], first["where"]["line"]) == ("PROBE005", [1], _line("/data/train.bin"))


@pytest.mark.slow
def test_a_rank_that_calls_another_collective_is_named(tmp_path: Path) -> None:
    first = _first(_by_hand(tmp_path, "order"))
    assert (first["code"], first["ranks"], first["where"]["line"]) == ("SCRIPT027", [1], _line("dist.broadcast"))
