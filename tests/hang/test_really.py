"""`ddpdoctor hang` beside real ranks under torchrun, of which one is somewhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor

pytestmark = pytest.mark.torch

JOB = """
import os, signal, subprocess, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Stuck(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): time.sleep(1000)

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
open(f"{sys.argv[2]}/ready{rank}", "w").close()
if rank == 1:
    case = sys.argv[1]
    if case == "sleeps": time.sleep(1000)
    if case == "stops": os.kill(os.getpid(), signal.SIGSTOP)
    if case == "loads": next(iter(DataLoader(Stuck(), num_workers=1)))
    if case == "reads": open(f"{sys.argv[2]}/fifo").read()
    if case == "starts": subprocess.run(["sleep", "1000"])
    if case == "locks":
        import fcntl
        held = open(f"{sys.argv[2]}/lock", "w")
        if os.fork() == 0:
            own = open(f"{sys.argv[2]}/lock", "w")
            fcntl.flock(own, fcntl.LOCK_EX)
            open(f"{sys.argv[2]}/locked", "w").close()
            time.sleep(1000)
        while not os.path.exists(f"{sys.argv[2]}/locked"): time.sleep(0.1)
        fcntl.flock(held, fcntl.LOCK_EX)
    if case == "forks":
        import ctypes
        libc = ctypes.CDLL(None)
        if libc.vfork() == 0: libc.sleep(1000)
    if case == "waits":
        import queue
        queue.Queue().get()
    if case == "computes":
        while True: pass
dist.all_reduce(torch.ones(4))
"""
PATIENCE_SECONDS = 90.0


@contextmanager
def _job(case: str, folder: Path) -> Iterator[int]:
    """A job of three ranks that stands still; the pid of torchrun."""
    (folder / "job.py").write_text(JOB)
    os.mkfifo(folder / "fifo")
    words = ["-m", "torch.distributed.run", "--nproc-per-node=3", "job.py", case, str(folder)]
    with open(folder / "output", "wb") as output:
        agent = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    ranks: set[int] = set()
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while len(list(folder.glob("ready*"))) < 3:
            is_on = agent.poll() is None and time.monotonic() < end
            assert is_on, (folder / "output").read_text()
            time.sleep(0.1)
        ranks = _below(agent.pid)
        yield agent.pid
    finally:
        for pid in {*ranks, *_below(agent.pid), agent.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        agent.wait(30)


def _below(pid: int) -> set[int]:
    """All processes below one."""
    found, level = set(), {pid}
    while level:
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(name)] = int(fields[1])
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def _asked(pid: int, *words: str) -> list[dict[str, Any]]:
    """What `hang` finds, asked again while the ranks are still on their way to where they get stuck."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = doctor("hang", str(pid), "--no-stacks", "--watch", "1", "--format", "json", *words)
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        if findings or time.monotonic() > end:
            return findings


CASES = [
    ("sleeps", "PROBE009", "sleeps"),
    pytest.param("stops", "PROBE007", "is stopped", marks=pytest.mark.slow),
    pytest.param("loads", "PROBE009", "data loader", marks=pytest.mark.slow),
    pytest.param("reads", "PROBE009", "file operation", marks=pytest.mark.slow),
    pytest.param("starts", "PROBE009", "sleep (pid", marks=pytest.mark.slow),
    pytest.param("locks", "PROBE009", "file lock", marks=pytest.mark.slow),
    pytest.param("forks", "PROBE009", "state D", marks=pytest.mark.slow),
    pytest.param("computes", "PROBE008", "computes", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "code", "words"), CASES)
def test_the_rank_that_is_elsewhere_is_named_and_everybody_lives(
    tmp_path: Path, case: str, code: str, words: str
) -> None:
    with _job(case, tmp_path) as agent:
        before = _below(agent)
        found = _asked(agent)
        assert _below(agent) == before
    assert [(each["code"], each["where"]["rank"]) for each in found] == [(code, 1)]
    assert words in found[0]["message"]
    assert found[0]["message"].endswith("ranks 0, 2 wait for it")


@pytest.mark.slow
def test_without_stacks_the_threads_of_gloo_tell_who_waits_outside_of_every_collective(tmp_path: Path) -> None:
    with _job("waits", tmp_path) as agent:
        end = time.monotonic() + PATIENCE_SECONDS
        found: list[tuple[str, int]] = []
        while ("PROBE009", 1) not in found and time.monotonic() < end:
            report = json.loads(doctor("hang", str(agent), "--no-stacks", "--watch", "1", "--format", "json").stdout)
            found = [(each["code"], each["where"]["rank"]) for each in report["findings"]]
    assert found == [("PROBE009", 1)]


def test_without_a_job_it_says_that_there_is_none() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        done = doctor("hang", str(other.pid), "--no-stacks", "--watch", "0.1", "--format", "json")
        other.kill()
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["findings"]) == (3, "incomplete", [])
    (process,) = report["inputs"]
    assert (process["kind"], process["understood"]) == ("process", False)
    assert "is not a rank" in process["reason"]
    gone = doctor("hang", "4194303", "--no-stacks")
    assert (gone.returncode, "no such process" in gone.stderr) == (2, True)
