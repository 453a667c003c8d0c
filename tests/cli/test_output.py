"""Where the report goes: files whole or not at all, pipes, narrow terminals, terminals without Unicode."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commandline import SECONDS, doctor, environment

SICK = {"RANK": "9", "WORLD_SIZE": "2", "MASTER_ADDR": "x" * 10_000}


def _on_a_terminal(columns: int, *words: str, env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "ddpdoctor", *words]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(env), cwd="/")
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # how Linux says that the other side was closed
    finally:
        os.close(ours)
        child.wait(SECONDS)
    return shown.decode()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal_or_100(columns: int) -> None:
    shown = _on_a_terminal(columns, "env", env={**SICK, "TERM": "xterm"})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "ENV001" in plain
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= min(columns, 100)


@pytest.mark.parametrize("extra", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colours_gets_none(extra: dict[str, str]) -> None:
    assert "\x1b[" in _on_a_terminal(80, "env", env={**SICK, "TERM": "xterm"})
    assert "\x1b[" not in _on_a_terminal(80, "env", env={**SICK, **extra})
    assert "\x1b[" not in _on_a_terminal(80, "env", "--no-color", env={**SICK, "TERM": "xterm"})


def test_a_pipe_gets_no_colours_and_no_line_over_100_columns() -> None:
    done = doctor("check", "--no-probe", env=SICK)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 100


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "markdown", "github"])
def test_standard_output_holds_the_report_alone(form: str) -> None:
    done = doctor("env", "--format", form, env=SICK)
    assert done.returncode == 1
    if form in ("json", "sarif"):
        json.loads(done.stdout)
    elif form == "junit":
        ElementTree.fromstring(done.stdout.encode())
    else:
        assert done.stdout.startswith(("## ddpdoctor", "::error"))


def test_output_holds_the_report_and_the_terminal_the_table(tmp_path: Path) -> None:
    done = doctor("env", "--format", "json", "--output", "report.json", cwd=tmp_path, env=SICK)
    assert done.returncode == 1
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "fail"
    assert "error[ENV001]" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_output_replaces_what_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    assert doctor("env", "--format", "json", "--output", "link.json", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    json.loads((tmp_path / "real.json").read_text())


def test_a_full_disk_is_said_and_a_device_stays_one() -> None:
    done = doctor("env", "--format", "json", "--output", "/dev/full")
    assert done.returncode == 3
    assert "/dev/full was not written: No space left on device" in done.stderr
    assert Path("/dev/full").is_char_device()


def test_standard_output_on_a_full_disk_is_said() -> None:
    done = doctor("env", "--format", "json", shell='"$@" > /dev/full')
    assert done.returncode == 3
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_closed_pipe_ends_the_command_quietly(form: str) -> None:
    done = doctor("rules", "--format", form, shell='"$@" | head -c 10 > /dev/null')
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_a_closed_pipe_costs_no_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    doctor("env", "--format", "json", "--output", str(file), shell='"$@" | true')
    assert json.loads(file.read_text())["command"] == "env"


def test_closed_streams_are_no_bug() -> None:
    assert doctor("env", shell='"$@" >&- 2>&-').returncode == 0


def test_a_terminal_without_unicode_gets_ascii() -> None:
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = doctor("rules", env=env)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert json.loads(doctor("rules", "--format", "json", env=env).stdout)


def test_garbage_in_variables_reaches_no_terminal() -> None:
    done = doctor("env", "--format", "json", shell=r"""RANK=$'\xff\x1b[2J' WORLD_SIZE=2 "$@" """)
    assert json.loads(done.stdout)["findings"]
    assert "\x1b" not in doctor("env", shell=r"""RANK=$'\xff\x1b[2J' WORLD_SIZE=2 "$@" """).stdout


def test_quiet_says_nothing_about_a_healthy_machine() -> None:
    assert "passed" not in doctor("env", "--quiet").stdout


def test_fail_on_never_is_always_0() -> None:
    assert doctor("env", "--fail-on", "never", env=SICK).returncode == 0
