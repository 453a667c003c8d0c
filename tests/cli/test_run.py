"""`run`: the job has its own streams, signals and exit code; a failure is followed by its triage."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commandline import doctor
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.job import Copy

DOCTOR = [sys.executable, "-m", "ddpdoctor", "run", "--no-check", "--"]
ENOUGH = 150.0


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`ddpdoctor run`, whose kept output lies in the test's folder."""
    return lambda *words, **more: doctor("run", *words, env={"TMPDIR": str(tmp_path)}, **more)


@pytest.fixture
def shell(run: Run) -> Run:
    """The same for a line of shell as the job."""
    return lambda text, *options, **more: run("--no-check", *options, "--", "sh", "-c", text, **more)


@contextmanager
def _started(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [*DOCTOR, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_streams_are_the_jobs_own_and_apart(shell: Run) -> None:
    done = shell("cat; echo out; echo err >&2", stdin=b"in\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "in\nout\n", "err\n")


@pytest.mark.parametrize(("text", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_jobs(shell: Run, text: str, code: int) -> None:
    assert shell(text).returncode == code


def test_a_command_that_is_missing_or_may_not_run_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for word, code in ((str(tmp_path / "none"), 127), (str(tmp_path / "file"), 126)):
        done = run("--no-check", "--", word)
        assert (done.returncode, done.stdout) == (code, "")
        assert word in done.stderr


def test_variables_and_shell_lines_may_stand_behind_the_dashes(run: Run) -> None:
    assert run("--no-check", "--", "X=5", "sh", "-c", "echo $X").stdout == "5\n"
    assert run("--no-check", "--", "echo a | tr a b").stdout == "b\n"
    assert run("--no-check", "--", "X=5").returncode == 2
    assert run().returncode == 2


def test_a_failure_is_triaged_on_standard_error_and_in_the_file(shell: Run, tmp_path: Path) -> None:
    line = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79 GiB"
    report = tmp_path / "report.json"
    done = shell(f"echo '{line}'; exit 1", "--output", str(report), "--format", "json")
    assert (done.returncode, done.stdout) == (1, line + "\n")
    assert "LOG012" in done.stderr
    found = json.loads(report.read_text())
    assert [(job["outcome"], job["exit"]) for job in found["jobs"]] == [("failed", 1)]
    assert {each["job"] for each in found["inputs"]} == {job["name"] for job in found["jobs"]}
    assert (found["command"], found["findings"][0]["code"], found["findings"][0]["where"]["rank"]) == (
        "run",
        "LOG012",
        1,
    )
    assert [path.read_text() for path in tmp_path.glob("ddpdoctor_output_*/output.log")] == [line + "\n"]


def test_the_check_is_shown_before_the_job_starts(run: Run) -> None:
    done = run("--no-probe", "--no-meet", "--anyway", "--", "sh", "-c", "echo job", shell='"$@" 2>&1')
    said = done.stdout.splitlines()
    start, job = said.index("ddpdoctor: starting: sh -c 'echo job'"), said.index("job")
    assert start < job
    assert any("host" in line for line in said[:start])
    assert any(line.startswith(("pass", "warn", "fail", "incomplete", "1 ", "2 ")) for line in said[:start])


def test_a_quiet_run_shows_only_what_is_wrong(run: Run) -> None:
    done = run("--no-probe", "--no-meet", "--anyway", "--quiet", "--", "sh", "-c", "echo job")
    assert done.stdout == "job\n"
    assert "starting" not in done.stderr
    assert "host " not in done.stderr


BROKEN = """
import importlib, sys
from ddpdoctor.app import run as use_case
from ddpdoctor.app.request import Request

def broken(*given):
    raise ValueError("nothing to repeat")

run = importlib.import_module("ddpdoctor.cli.run")
use_case.diagnose = importlib.import_module = broken
sys.exit(run.run(Request(launch=("sh", "-c", "sleep 0.7; exit 7")), no_check=True))
"""


def test_a_fault_of_ours_changes_no_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=ENOUGH)
    assert done.returncode == 7, done.stderr
    assert "a bug in ddpdoctor: ValueError('nothing to repeat')" in done.stderr


def test_a_good_run_leaves_nothing(shell: Run, tmp_path: Path) -> None:
    assert shell("echo hello").stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_dumps_and_error_files_of_the_run_are_read(run: Run, tmp_path: Path) -> None:
    from flight_dumps import call, dump, pickled

    script = tmp_path / "job.py"
    start = [call("all_reduce")]
    waits = pickled(dump([*start, call("all_reduce", state="started")], groups={"0": [0, 1, 2]}))
    late = pickled(dump(start, groups={"0": [0, 1, 2]}))
    script.write_text(
        f"import sys\nfor rank, data in enumerate(({waits!r}, {late!r}, {waits!r})):\n"
        f"    open({str(tmp_path)!r} + f'/fr_{{rank}}', 'wb').write(data)\nsys.exit(1)\n"
    )
    prefix = f"TORCH_FR_DUMP_TEMP_FILE={tmp_path}/fr_"
    done = run("--no-check", "--", prefix, sys.executable, str(script))
    assert done.returncode == 1
    assert "rank 1 never called it" in " ".join(done.stderr.split())


def test_an_error_of_the_check_keeps_the_job_from_starting(run: Run) -> None:
    words = ("--no-probe", "--no-meet", "--select", "LAUNCH", "--")
    launch = ("python3", "/nonexistent/train.py")
    done = run(*words, *launch)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--anyway" in done.stderr
    assert run("--anyway", *words, *launch).returncode == 2  # Python's own


def test_signals_are_passed_on(tmp_path: Path) -> None:
    text = "trap 'echo got it; exit 9' {}; echo ready; while :; do sleep 0.05; done"
    for name in ("TERM", "INT"):
        with _started(tmp_path, "sh", "-c", text.format(name)) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            child.send_signal(getattr(signal, f"SIG{name}"))
            out, _ = child.communicate(timeout=ENOUGH)
        assert (out, child.returncode) == (b"got it\n", 9)


def test_what_our_starter_hands_on_reaches_the_job(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    line = [*DOCTOR, "sh", "-c", f"echo hello >/proc/self/fd/{writes}"]
    done = subprocess.run(line, pass_fds=(writes,), env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=ENOUGH)
    os.close(writes)
    with os.fdopen(reads) as received:
        assert (done.returncode, received.read()) == (0, "hello\n")


def test_what_the_job_leaves_running_does_not_hold_us(shell: Run) -> None:
    begun = time.monotonic()
    done = shell("sleep 300 & echo $!; exit 0")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0
    assert time.monotonic() - begun < ENOUGH


class _Terminal:
    """A program on a terminal of its own."""

    def __init__(self, folder: str, command: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TMPDIR"] = folder
            os.execv(command[0], command)
        self.seen = b""

    def until(self, word: bytes) -> None:
        """Wait for a word on the screen."""
        end = time.monotonic() + ENOUGH
        while word not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 4096)

    def end(self) -> int:
        """Wait for the end and its exit code."""
        end = time.monotonic() + ENOUGH
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    pass  # the last one closed the terminal
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(self.seen)


def test_on_a_terminal_the_job_has_one_and_control_c_reaches_it_alone(tmp_path: Path) -> None:
    job = (
        "import sys, time, os, signal\n"
        "signal.signal(signal.SIGWINCH, lambda *_: print('wide', os.get_terminal_size().columns, flush=True))\n"
        "try:\n"
        "    print('tty', sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(), flush=True)\n"
        "    for _ in range(1000): time.sleep(0.1)  # a signal just before one long sleep would be seen after it\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True); sys.exit(5)\n"
    )
    terminal = _Terminal(str(tmp_path), [*DOCTOR, sys.executable, "-c", job])
    terminal.until(b"tty True True True")
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 133, 0, 0))
    terminal.until(b"wide 133")
    os.write(terminal.fd, b"\x03")
    assert terminal.end() == 5
    assert b"interrupted" in terminal.seen


def test_a_script_around_us_ends_with_control_c_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    job = "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(100)"
    script.write_text(f'{" ".join(DOCTOR)} {sys.executable} -c "{job}"\necho went on\n')
    terminal = _Terminal(str(tmp_path), ["/bin/bash", str(script)])
    terminal.until(b"ready")
    os.write(terminal.fd, b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert b"went on" not in terminal.seen


def test_control_z_stops_the_job_and_us_and_fg_goes_on(tmp_path: Path) -> None:
    job = "import sys\nprint('ready', flush=True)\nprint('read', sys.stdin.readline(), flush=True)"
    terminal = _Terminal(str(tmp_path), ["/bin/bash", "--norc", "--noprofile", "-i"])
    os.write(terminal.fd, b"PS1='prompt> '\n")
    words = " ".join([*DOCTOR[:-1], "--", sys.executable, "-c", f'"{job.replace(chr(10), ";")}"'])
    os.write(terminal.fd, words.encode() + b"\n")
    terminal.until(b"\rready\r")
    os.write(terminal.fd, b"\x1a")
    terminal.until(b"Stopped")
    os.write(terminal.fd, b"fg\n")
    os.write(terminal.fd, b"hello\n")
    terminal.until(b"read hello")
    os.write(terminal.fd, b"exit 3\n")
    assert terminal.end() == 3


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(0, 50), st.integers(1, 50))
def test_a_copy_keeps_the_beginning_and_the_end(pieces: list[bytes], head: int, tail: int) -> None:
    copy = Copy(head, tail)
    for piece in pieces:
        copy.add(piece)
    whole, kept = b"".join(pieces), copy.content()
    assert kept.startswith(whole[:head])
    assert kept == whole if not copy.left_out else f"{copy.left_out} bytes not kept".encode() in kept
    assert len(kept) <= head + tail + 60


def test_a_closed_standard_error_costs_neither_the_exit_code_nor_a_folder(tmp_path: Path) -> None:
    ready, errors = os.pipe()
    with subprocess.Popen(
        [*DOCTOR, "sh", "-c", "echo NCCL error; sleep 1; exit 7"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as child:
        os.close(errors)
        os.close(ready)
        assert child.wait(ENOUGH) == 7
    assert list(tmp_path.iterdir()) == []
