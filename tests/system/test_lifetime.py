"""Nothing outlives a process that is killed: no child, no job, no temporary folder; and no thread is no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from commandline import SECONDS, environment

from ddpdoctor.system import timeouts
from ddpdoctor.system.lifetime import TemporaryFolder, temporary_folder
from ddpdoctor.system.process import output_within, start
from ddpdoctor.system.timeouts import NoThreadError, call_with_timeout, finish_all, in_threads


def _until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _python(code: str, *words: str, tmp: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"TMPDIR": str(tmp)}),
    )


FOLDER = """
import sys, time
from ddpdoctor.system.lifetime import TemporaryFolder
folder = TemporaryFolder()
open(folder.path + "/file", "w").close()
if sys.argv[1] == "keep":
    folder.keep()
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("fate", ["remove", "keep"])
def test_a_temporary_folder_goes_with_a_killed_process_unless_it_is_kept(fate: str, tmp_path: Path) -> None:
    process = _python(FOLDER, fate, tmp=tmp_path)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert (path / "file").exists()
    process.kill()
    process.communicate()
    if fate == "remove":
        assert _until(lambda: not path.exists())
    else:
        assert (path / "file").exists()


def test_a_temporary_folder_is_removed_at_the_end_of_its_block() -> None:
    with temporary_folder() as path:
        Path(path, "file").touch()
    assert not Path(path).exists()


def test_a_temporary_folder_needs_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **options: object) -> None:
        raise FileNotFoundError("/bin/sh")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    folder = TemporaryFolder()
    folder.remove()
    assert not Path(folder.path).exists()


def test_the_workers_of_a_pool_end_with_a_killed_command(tmp_path: Path) -> None:
    for at in range(80):
        (tmp_path / f"rank{at}.log").write_text(f"[rank{at}]: step 1\n" * 30_000)
    mark = f"DDPDOCTOR_TEST={tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", "triage", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment({"DDPDOCTOR_TEST": str(tmp_path)}),
    )
    if (os.cpu_count() or 1) > 1:
        assert _until(lambda: bool(psutil.Process(process.pid).children()))
    process.kill()
    process.wait()
    assert _until(lambda: not _marked(mark))


def test_a_job_is_terminated_if_the_command_that_runs_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path / 'ended')!r}, 'w').close(), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", "run", "--no-check", "--", sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate()
    assert _until((tmp_path / "ended").exists)


@pytest.mark.torch
def test_the_ranks_of_a_killed_check_end(tmp_path: Path) -> None:
    mark = f"DDPDOCTOR_TEST={tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", "check"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment({"DDPDOCTOR_TEST": str(tmp_path)}),
        cwd="/",
    )
    assert _until(lambda: len(_marked(mark)) >= 3)  # the command, the probe's supervisor, and what imports torch
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end them itself
    process.kill()
    process.wait()
    assert _until(lambda: not _marked(mark))


def _marked(mark: str) -> list[int]:
    found = []
    for each in psutil.process_iter():
        try:
            name, _, value = mark.partition("=")
            if each.environ().get(name) == value and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
        except (psutil.Error, OSError):
            continue
    return found


def _refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(timeouts.threading, "_start_new_thread", refuse)


def test_a_call_for_which_no_thread_can_be_started_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch)
    with pytest.raises(NoThreadError, match="no thread can be started"):
        call_with_timeout(lambda: 1, 1.0)


def test_work_for_which_no_thread_can_be_started_is_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch)
    done: list[int] = []
    in_threads([lambda: done.append(1), lambda: done.append(2)])
    assert done == [1, 2]


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def fail() -> None:
        raise LookupError("unknown encoding: idna")

    with pytest.raises(LookupError, match="idna"):
        finish_all([fail, lambda: None], lambda: 10.0)


def test_a_child_without_input_needs_no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    child = start(["cat"], stdout=subprocess.PIPE)
    assert output_within(child, 30.0)[0] == b""
