"""Every command and option that takes a path, with every kind of path: it ends in time, and says what the path is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import environment

SECONDS = "4"
MOST_SECONDS = 120.0
"""A command that hangs would need forever; a slow machine needs some of it."""

READERS = {
    "triage": "triage @",
    "triage --good": "triage --good @ good.log",
    "lint": "lint @",
    "script": "lint -- torchrun --nproc-per-node 2 @",
    "config": "lint -- accelerate launch --config_file @ train.py",
    "hostfile": "lint -- deepspeed --hostfile @ train.py",
    "mpirun": "lint -- mpirun -n 2 --hostfile @ python train.py",
    "lint --facts": "lint --facts @ -- torchrun train.py",
    **{
        f"{each} --facts": f"{each} --facts @"
        for each in ["check", "env", "ports", "gpus", "topo", "net", "host", "versions", "hang", "collect"]
    },
    "compare": "compare @ saved.json",
    "compare second": "compare saved.json @",
    "check --secret": "check --no-probe --secret @ -- torchrun --nnodes 2 --master-addr 127.0.0.1 --node-rank 0 train.py",
    "probe --baseline": "probe --standalone --nproc-per-node 1 --baseline @",
    "check": "check --no-probe --no-meet -- torchrun --nproc-per-node 1 @",
}
WRITERS = {
    "--output": "env --output @",
    "triage --output": "triage good.log --output @",
    "compare --output": "compare saved.json saved.json --output @",
    "lint --output": "lint train.py --output @",
    "collect -o": "collect -o @",
    "probe --save-baseline": "probe --standalone --nproc-per-node 1 --save-baseline @",
}
STRANGE = b"n\xff\xe9.log"
KINDS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "pipe": ("p1", ("pipe", "--timeout", "does not exist in")),
    "silent": ("-", ("did not end", "--timeout", "empty", "no such file", "does not exist")),
    "socket": ("s1", ("a socket",)),
    "zero": ("/dev/zero", ("device", "not text")),
    "kernel's log": ("/proc/kmsg", ("no data to read now", "timed out", "--timeout", "of the kernel", "not written")),
    "memory": ("/proc/self/mem", ("input/output error", "not written")),
    "folder": ("d1", ("folder", "directory", "nothing to judge")),
    "below a file": ("good.log/x", ("not a directory", "does not exist", "no such file")),
    "link to itself": ("l1", ("a symbolic link to itself",)),
    "empty": ("e1", ("empty", "other users", "not written by", "--save-baseline")),
    "missing": ("nope1", ("no such file", "does not exist")),
    "missing, not UTF-8": (b"nope2\xff", ("no such file", "does not exist")),
    "too long": ("n" * 300, ("too long", "does not exist", "no such file")),
}
"""The path, and what may be said of it. The names are no words of the sentences."""

DEVICES = ("zero", "kernel's log", "memory", "empty")
FINE = {
    *((each, kind) for each in ("config", "hostfile", "mpirun") for kind in DEVICES),  # such as --hostfile /dev/null
    *((each, "empty") for each in ("script", "check")),
    *((each, kind) for each in WRITERS for kind in ("zero", "empty", "missing", "missing, not UTF-8")),
}
"""Pairs that need no complaint."""
QUICK = {
    *(
        ("check --secret", "folder"),
        ("check --secret", "kernel's log"),
        ("check --facts", "too long"),
        ("env --facts", "socket"),
    ),
    *(
        ("--output", "too long"),
        ("script", "pipe"),
        ("config", "pipe"),
        ("triage", "folder"),
        ("probe --baseline", "folder"),
    ),
    *(("collect -o", "pipe"), ("hang --facts", "empty"), ("lint", "link to itself")),
}
"""The pairs of the short run, all of which failed once; DDPDOCTOR_FULL=1 runs all."""


def _pairs() -> list[object]:
    pairs = []
    for command in (*READERS, *WRITERS):
        for kind in KINDS:
            if kind == "silent" and (
                command in WRITERS or command in ("script", "check", "check --secret", "probe --baseline")
            ):
                continue  # a file of this name
            is_quick = (command, kind) in QUICK or os.environ.get("DDPDOCTOR_FULL") == "1"
            marks = () if is_quick else pytest.mark.slow
            pairs.append(pytest.param(command, kind, id=f"{command}: {kind}", marks=marks))
    return pairs


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with every kind of path."""
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / "in").write_text("x\n")
    (tmp_path / "train.py").write_text("import sys\n")
    (tmp_path / "good.log").write_text("step 1 loss 2\n")
    (tmp_path / "saved.json").write_text('{"schema": "ddpdoctor.facts/1", "collected_at": "", "hostname": "n"}')
    (tmp_path / "e1").touch()
    os.mkfifo(tmp_path / "p1")
    os.symlink("l1", tmp_path / "l1")
    opened = os.open(tmp_path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{opened}/s1")  # the path of a socket may have 107 bytes
    os.close(opened)
    return tmp_path


@pytest.mark.parametrize(("command", "kind"), _pairs())
def test_a_command_says_what_a_path_is(command: str, kind: str, place: Path) -> None:
    path, words = KINDS[kind]
    line = (READERS.get(command) or WRITERS[command]).split()
    name, *rest = [path if word == "@" else word for word in line]
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", name, "--timeout", SECONDS, "--format", "json", *rest],
        stdin=read,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place,
        env=environment(),
        start_new_session=True,
    )
    os.close(read)
    try:
        out, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    finally:
        os.close(write)
    said = (out + err).decode("utf-8", "replace").lower()
    assert "internal error" not in said
    assert "traceback" not in said
    assert process.returncode in (0, 1, 2, 3)
    if (command, kind) in FINE:
        return
    assert process.returncode != 0, said
    shown = "standard input" if path == "-" and "standard input" in said else os.fsdecode(path)
    assert shown[:5].lower().rstrip("\udcff") in said
    assert any(word in said for word in words), said


@pytest.mark.parametrize("command", ["triage", "lint"])
def test_a_name_that_is_not_utf8_is_read(command: str, place: Path) -> None:
    name = os.fsdecode(STRANGE) + (".py" if command == "lint" else "")
    with open(os.path.join(os.fsencode(place), os.fsencode(name)), "wb") as file:
        file.write(b"import torch\n")
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", command, os.fsencode(name)],
        capture_output=True,
        cwd=place,
        env=environment(),
        timeout=MOST_SECONDS,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 3)
