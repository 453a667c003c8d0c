"""However a command ends: in time, with the right code, without a traceback, and with nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commandline import ROOT, SECONDS, doctor, environment

FULL = bool(os.environ.get("DDPDOCTOR_FULL"))

NEVER = """
import sys, time
from ddpdoctor.collectors import environ
from ddpdoctor.system import process
environ.collect = lambda machine: process.run(["sleep", "77"], 60.0)
print("looking", flush=True)
from ddpdoctor.cli import main
main(["env", *sys.argv[1:]])
"""
"""The command line on a machine that does not answer: a child of the doctor hangs."""


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", NEVER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    )


def _child_of(process: subprocess.Popen[str]) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        children = psutil.Process(process.pid).children()
        if children:
            return children[0]
        time.sleep(0.02)
    raise AssertionError("no child was started")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_ends_the_command_and_its_children(number: signal.Signals, code: int) -> None:
    process = _start()
    child = _child_of(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_timeout_ends_the_command_with_a_full_report() -> None:
    before = time.monotonic()
    process = _start("--timeout", "2", "--format", "json")
    child = _child_of(process)
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 3
    assert time.monotonic() - before < 20
    report = json.loads(out.partition("looking\n")[2])
    assert report["verdict"] == "incomplete"
    assert report["crashed"][-1]["error"].startswith("finish within --timeout 2 s: no answer on environ")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_in_any_phase_of_check_is_quiet(delay: float) -> None:
    code = "print('up', flush=True); from ddpdoctor.cli import main; main(['check', '--no-probe'])"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import ddpdoctor.cli; {code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.05 + delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (130, 0, 1)  # it may have ended before, with what it found on this machine
    assert "Traceback" not in err


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        "env --format json",
        "check --no-probe --format json",
        "triage {log} --format json",
        "run --no-probe -- sh -c true",
        pytest.param("probe --nproc-per-node 2 --timeout 60 --format json", marks=pytest.mark.torch),
        pytest.param("check --timeout 60 --format json", marks=(pytest.mark.torch, pytest.mark.slow)),
    ],
)
def test_a_chroot_without_devices_is_no_bug(words: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
    line = words.format(log=tmp_path / "log").split()
    hidden = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount -t tmpfs none /dev && exec "$@"',
        "sh",
    ]
    done = subprocess.run(
        [*hidden, sys.executable, "-m", "ddpdoctor", *line],
        capture_output=True,
        text=True,
        env=environment(),
        cwd="/",
        timeout=SECONDS,
        input="",
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    if "json" in line:
        assert json.loads(done.stdout)["verdict"] in ("pass", "fail", "incomplete", "warn")


@pytest.mark.parametrize(
    "words", ["env", "check", "run -- true", "triage /etc/hostname", "compare a b", "lint -- x", "-m probe"]
)
def test_ctrl_c_in_any_moment_of_the_start_shows_no_line_of_ddpdoctor(words: str) -> None:
    """During its own start Python may print a traceback; of ddpdoctor's imports none is shown."""
    script = Path(sys.executable).with_name("ddpdoctor")
    own = [str(script)] if script.exists() else [sys.executable, "-m", "ddpdoctor"]
    argv = [sys.executable, "-m", "ddpdoctor.probe"] if words == "-m probe" else [*own, *words.split()]
    for step in range(31) if FULL else range(0, 31, 10):
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), cwd="/"
        )
        time.sleep(0.02 * step)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        assert "Traceback" not in err or f"{ROOT}/ddpdoctor/" not in err, (step, err)


def test_importing_a_part_of_ddpdoctor_leaves_the_signals_alone() -> None:
    code = "import signal, ddpdoctor.cli, ddpdoctor.engine; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=SECONDS
    )
    assert done.stdout == "default_int_handler\n"


def test_a_clock_that_is_set_back_makes_no_negative_duration() -> None:
    code = (
        "import time; real = time.time; begun = real(); "
        "time.time = lambda: real() - (3600 if real() - begun > 0.3 else 0); "
        "from ddpdoctor.cli import main; main(['env', '--format', 'json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=SECONDS
    )
    assert 0 <= json.loads(done.stdout)["seconds"] < SECONDS


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError(24, 'Too many open files', '/etc/x')", "error: Too many open files; raise the limits"),
        ("MemoryError()", "error: not enough memory; raise the limits"),
        ('RuntimeError("can\'t start new thread")', "error: can't start new thread; raise the limits"),
        ("EOFError('marshal data too short')", "error: a compiled Python file is truncated"),
    ],
)
def test_what_the_machine_lacks_is_no_bug(raised: str, said: str) -> None:
    code = f"import ddpdoctor.cli as c\ndef f(words): raise {raised}\nc._run = f; c.main(['env'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd="/", timeout=SECONDS
    )
    assert done.returncode == 3
    assert done.stderr.startswith(said)


def test_sixteen_open_files_are_enough_to_say_something() -> None:
    done = doctor("check", "--no-probe", "--format", "json", shell='ulimit -n 16; "$@"')
    assert done.returncode in (0, 1)
    assert json.loads(done.stdout)["passed"]


def test_no_torch_is_needed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken torch')\n")
    paths = f"{tmp_path}:{environment()['PYTHONPATH']}"
    for words in (["--version"], ["check", "--no-probe"], ["rules"], ["versions"]):
        assert doctor(*words, env={"PYTHONPATH": paths}).returncode in (0, 1)


def test_a_working_directory_that_is_gone_is_no_bug(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = doctor("env", cwd=gone, shell='rmdir "$PWD"; "$@"')
    assert done.returncode == 0


def test_a_machine_that_is_not_linux_is_told_so() -> None:
    code = (
        "import types, ddpdoctor.collectors as c; c.sys = types.SimpleNamespace(platform='darwin'); "
        "from ddpdoctor.cli import main; main(['host'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd="/", timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "not Linux" in done.stdout


def test_a_bug_is_confessed_in_two_lines() -> None:
    code = "import ddpdoctor.cli as c; c._run = lambda words: 1 / 0; c.main(['env'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd="/", timeout=SECONDS
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: internal error: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in done.stderr
