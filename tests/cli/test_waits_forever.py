"""Inputs that never answer: every command ends within its time limit, with a report or a reason, and without a bug."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import environment

LIMIT_SECONDS = "6"
MOST_SECONDS = 120.0
"""A command that hangs would need for ever; a slow machine needs some of it."""
LINE = b"rank 0: step 1, loss 2.0\n"

COMMANDS = {
    "triage": ["triage", "@"],
    "lint": ["lint", "@"],
    "check": ["check", "--facts", "@"],
    "compare": ["compare", "@", "@"],
    "hang": ["hang", "--facts", "@"],
    "env": ["env", "--facts", "@"],
    "gpus": ["gpus", "--facts", "@"],
    "topo": ["topo", "--facts", "@"],
    "net": ["net", "--facts", "@"],
    "config": ["lint", "--", "accelerate", "launch", "--config_file", "@", "train.py"],
    "script": ["check", "--no-probe", "--no-meet", "--", "python", "@"],
    "rehearse": ["rehearse", "--", "python", "@"],
    "output": ["env", "--output", "@"],
}
INPUTS = {
    "pipe": "pipe",
    "kernel's log": "/proc/kmsg",
    "socket": "socket",
    "zero": "/dev/zero",
    "terminal": "/dev/tty",
    "full": "/dev/full",
    "link to itself": "self",
    "folder": "folder",
    "silent": "-",
    "endless": "-",
    "endless JSON": "-",
}
QUICK = {
    *(("lint", "kernel's log"), ("lint", "folder"), ("lint", "silent"), ("triage", "folder"), ("config", "pipe")),
    *(("env", "silent"), ("check", "endless JSON"), ("output", "pipe"), ("compare", "pipe")),
}
"""The pairs of the short run; DDPDOCTOR_FULL=1 runs all."""
PAIRS = [
    pytest.param(
        command,
        given,
        id=f"{command}-{given}",
        marks=() if (command, given) in QUICK or os.environ.get("DDPDOCTOR_FULL") == "1" else pytest.mark.slow,
    )
    for command in COMMANDS
    for given in INPUTS
    if not (INPUTS[given] == "-" and command in ("output", "config", "script", "rehearse"))
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with inputs that never answer, and a folder of them."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text("import torch\n")
    for where in (tmp_path, folder):
        os.mkfifo(where / "pipe")
        os.symlink("self", where / "self")
    for name in ("pipe.py", "pipe.sh", "pipe.json", "pipe.log", ".gitignore"):
        os.mkfifo(folder / name)
    os.symlink(".", folder / "loop")
    for name, target in (
        ("zero.log", "/dev/zero"),
        ("tty.py", "/dev/tty"),
        ("kmsg", "/proc/kmsg"),
        ("k.sh", "/proc/kmsg"),
    ):
        os.symlink(target, folder / name)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for each, where in ((first, tmp_path), (second, folder)):
            opened = os.open(where, os.O_PATH)
            each.bind(f"/proc/self/fd/{opened}/socket")  # the path of a socket may have 107 bytes
            os.close(opened)
        yield tmp_path


def _feed(descriptor: int, given: str) -> None:
    """Write until nobody reads any more; closed at the end."""
    with open(descriptor, "wb", buffering=0) as pipe:
        try:
            if given == "endless JSON":
                pipe.write(b'{"schema": "ddpdoctor.facts/1", "x": [')
            while True:
                pipe.write(b"1, " * 10_000 if given == "endless JSON" else LINE * 1000)
        except BrokenPipeError:
            return


@pytest.mark.parametrize(("command", "given"), PAIRS)
def test_every_command_ends(command: str, given: str, place: Path) -> None:
    name, *words = [INPUTS[given] if word == "@" else word for word in COMMANDS[command]]
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", name, "--timeout", LIMIT_SECONDS, "--format", "json", *words],
        stdin=read,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=environment(),
        start_new_session=True,
    )
    os.close(read)
    feeder = threading.Thread(target=_feed, args=(write, given))
    if given.startswith("endless"):
        feeder.start()
    try:
        said, noted = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    finally:
        if given.startswith("endless"):
            feeder.join()
        else:
            os.close(write)
    assert "internal error" not in noted, noted
    assert "Traceback" not in noted, noted
    if process.returncode == 2:
        assert "error: " in noted
        return
    if command != "output":
        report = json.loads(said)
        assert report["verdict"] in ("incomplete", "fail", "warn", "pass")
        assert report["verdict"] != "pass" or given in ("folder", "endless") or command == "config"
    elif given not in ("terminal",):
        assert process.returncode == 3
        assert "was not written" in noted or given in ("zero", "folder")
