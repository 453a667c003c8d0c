"""However a rehearsal ends, no process and no file is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ddpdoctor.app.output_file import CannotWriteError
from ddpdoctor.app.rehearse import RehearsalOptions, rehearse_launch
from ddpdoctor.app.request import Request
from ddpdoctor.rehearsal.stage import RehearsalFolder
from ddpdoctor.rehearsal.supervisor import _is_runnable

pytestmark = pytest.mark.torch

WAITS = """
import os, subprocess, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("waiting", flush=True)
{body}
"""


def started(folder: Path, body: str, *options: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(WAITS.format(body=body))
    words = [
        sys.executable,
        "-m",
        "ddpdoctor",
        "rehearse",
        *options,
        "--",
        "torchrun",
        "--nproc_per_node",
        "2",
        "train.py",
    ]
    return subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def marked(folder: Path) -> list[int]:
    """The processes that belong to a rehearsal of this folder, or were started by one."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = b"DDPDOCTOR_REHEARSAL=" in (each / "environ").read_bytes()
            if is_marked and os.readlink(each / "cwd").startswith(str(folder)):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def wait_for(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = marked(folder)
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{len(marked(folder))} processes, expected {count}")


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not marked(folder):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the rehearsal's own files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    tempfile.tempdir = None
    return folder


def test_ctrl_c(tmp_path: Path, temporary: Path) -> None:
    job = started(tmp_path, "time.sleep(600)")
    wait_for(tmp_path, 8)  # what starts the ranks, what cleans up, 2 ranks, 2 forked, 2 sleeping
    os.kill(job.pid, signal.SIGINT)
    job.communicate(timeout=30)
    assert job.returncode == 130
    assert gone(tmp_path)
    assert list(temporary.iterdir()) == []


def test_sigterm(tmp_path: Path, temporary: Path) -> None:
    job = started(tmp_path, "time.sleep(600)")
    wait_for(tmp_path, 8)
    os.kill(job.pid, signal.SIGTERM)
    job.communicate(timeout=30)
    assert job.returncode == 143
    assert gone(tmp_path)
    assert list(temporary.iterdir()) == []


def test_the_doctor_is_killed(tmp_path: Path, temporary: Path) -> None:
    """Nothing is left, not even a program that a rank has started in a session of its own."""
    job = started(tmp_path, "time.sleep(600)")
    wait_for(tmp_path, 8)
    os.kill(job.pid, signal.SIGKILL)
    job.communicate(timeout=30)
    assert gone(tmp_path)
    deadline = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []


def test_a_process_that_waits_for_a_cpu_is_not_idle() -> None:
    """On a busy machine a rank may use no CPU time for a second, and is not stuck."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            deadline = time.monotonic() + 20
            while not _is_runnable(busy.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert _is_runnable(busy.pid)
        finally:
            busy.kill()
    assert not _is_runnable(busy.pid)


def test_a_folder_whose_owner_is_gone_is_removed_at_the_next_start(temporary: Path) -> None:
    orphan, other = temporary / "ddpdoctor_rehearsal_orphan", temporary / "ddpdoctor_rehearsal_other"
    for each, owner in ((orphan, f"{os.getpid()} 1"), (other, None)):
        each.mkdir()
        if owner is not None:
            (each / "owner").write_text(owner)
    first = RehearsalFolder()
    second = RehearsalFolder()
    try:
        assert first.folder.exists()
        assert not orphan.exists()
        assert other.exists(), "it may just be made by another process"
    finally:
        first.close()
        second.close()


def test_a_full_disk_is_one_line(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ddpdoctor.rehearsal.stage.shutil.copytree", full)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(CannotWriteError, match="No space left on device"):
        rehearse_launch(Request(launch=("torchrun", "train.py")), RehearsalOptions())
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_copied_is_one_line(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(*_: object, **__: object) -> None:
        raise shutil.Error([("a.pt", "b.pt", "[Errno 27] File too large")])

    monkeypatch.setattr("ddpdoctor.rehearsal.stage.shutil.copytree", partly)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(CannotWriteError, match="File too large"):
        rehearse_launch(Request(launch=("torchrun", "train.py")), RehearsalOptions())
    assert list(temporary.iterdir()) == []


def test_a_rank_is_killed(tmp_path: Path, temporary: Path) -> None:
    body = "if dist.get_rank() == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()"
    job = started(tmp_path, body, "--format", "concise")
    out, err = job.communicate(timeout=90)
    assert "PROBE506" in out, out + err
    assert job.returncode == 1
    assert gone(tmp_path)
    assert list(temporary.iterdir()) == []


def test_a_script_that_catches_everything(tmp_path: Path, temporary: Path) -> None:
    body = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except BaseException:
        pass
"""
    job = started(tmp_path, body, "--steps", "2", "--format", "concise")
    out, err = job.communicate(timeout=90)
    assert "PROBE508" in out, out + err
    assert gone(tmp_path)


CATCHES = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
made = 0
while made < 20:
    try:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except {caught}:
        print("caught after", made, flush=True)
        continue
    made += 1
    print("made", made, flush=True)
"""


@pytest.mark.parametrize("caught", ["Exception", "BaseException"])
def test_the_third_of_three_steps_ends_the_script(
    caught: str, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + CATCHES.format(caught=caught)
    (tmp_path / "train.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    launch = ("torchrun", "--nproc_per_node", "2", "train.py")
    _, facts = rehearse_launch(Request(launch=launch), RehearsalOptions(steps=3))
    assert facts.rehearsal is not None
    assert [rank.steps for rank in facts.rehearsal.ranks] == [3, 3]


def test_a_script_that_ends_its_process(tmp_path: Path, temporary: Path) -> None:
    """The process that it forked and left behind is not waited for until the time limit of 60 seconds."""
    job = started(tmp_path, "os._exit(3)", "--format", "concise")
    out, err = job.communicate(timeout=50)
    assert "exit code 3" in out, out + err
    assert gone(tmp_path)
