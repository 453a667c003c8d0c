"""Dumps that torch's own Flight Recorder writes, by ranks that disagree over Gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor

pytestmark = pytest.mark.torch

JOB = """
import os, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, case = dist.get_rank(), sys.argv[1]
dist.barrier()

def write():
    time.sleep(2)
    open(f"nccl_trace_rank_{rank}", "wb").write(recorder._dump_fr_trace())
    told = recorder._dump_fr_trace_json()
    open(f"fr_{rank}.json", "w").write(told if isinstance(told, str) else told.decode())
    open(f"written{rank}", "w").close()
    while sum(name.startswith("written") for name in os.listdir()) < 3: time.sleep(0.05)
    os._exit(0)

threading.Thread(target=write).start()
if rank == 1:
    if case == "missing": time.sleep(60)
    if case == "order": dist.broadcast(torch.ones(4), 0); time.sleep(60)
    if case == "shape": dist.all_reduce(torch.ones(5))
if case != "well": dist.all_reduce(torch.ones(4))
time.sleep(60)
"""

CASES = [
    ("missing", "LOG001", [1], "seq 2: ranks 0, 2 wait in all_reduce([4]) at job.py:26; rank 1 never called it"),
    pytest.param("order", "SCRIPT027", [1], "rank 1 called broadcast([4])", marks=pytest.mark.slow),
    pytest.param("shape", "SCRIPT028", [1], "rank 1 called all_reduce([5])", marks=pytest.mark.slow),
    pytest.param("well", None, [], "", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "code", "ranks", "words"), CASES)
def test_triage_says_what_the_ranks_did(
    tmp_path: Path, case: str, code: str | None, ranks: list[int], words: str
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "job.py", case]
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    for kind in ("nccl_trace_rank_*", "fr_*.json"):
        files = [str(path) for path in sorted(tmp_path.glob(kind))]
        assert len(files) == 3
        report: dict[str, Any] = json.loads(doctor("triage", *files, "--format", "json").stdout)
        found = [each for each in report["findings"] if each["severity"] == "error"]
        assert [each["code"] for each in found] == ([code] if code else [])
        if code and kind.startswith("nccl"):
            assert words in found[0]["message"]
            assert (found[0]["ranks"], found[0]["where"]["rank"]) == (ranks, ranks[0])
            assert found[0]["where"]["file"].endswith("job.py")
