"""Training scripts in fixtures/situations/scripts: how each is started, and starting it on two gloo ranks.

Comments in the first lines of a script say how: `# run: torchrun` (or `python`, or both), `# sees: REGEX` what its output
shows, `# exit: 0` or `1`. `# expect: CODE` stands at the end of a line that a finding points at.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cases import SITUATIONS
from commandline import environment

__all__ = ["RIGHT", "WRONG", "Outcome", "expected", "header", "start"]

RIGHT = sorted((SITUATIONS / "scripts" / "right").glob("*.py"))
WRONG = sorted((SITUATIONS / "scripts" / "wrong").glob("*.py"))
PORT = "29501"
"""The port that scripts name; a free one takes its place when they run."""
SECONDS = 90.0


@dataclass(frozen=True)
class Outcome:
    """How a script ended; `code` is None if it was still running after `seconds` and was killed."""

    code: int | None
    output: str


def header(path: Path, word: str, default: str = "") -> str:
    """The values of one key in a script's first comments."""
    found = re.search(rf"^# {word}: (.*)$", path.read_text(), re.MULTILINE)
    return found[1].strip() if found else default


def expected(path: Path) -> list[tuple[str, int]]:
    """The codes that a script's comments expect, with their lines."""
    rows = enumerate(path.read_text().split("\n"), 1)
    marks = ((row, re.search(r"# expect: ([\w, ]+)$", text)) for row, text in rows)
    return sorted((code, row) for row, mark in marks if mark for code in mark[1].split(", "))


def start(path: Path, how: str, folder: Path, seconds: float = SECONDS) -> Outcome:
    """Run a copy of the script in `folder`, in a session of its own: nothing of it is left afterwards."""
    port = str(_free_port())
    copy = folder / path.name
    copy.write_text(path.read_text().replace(PORT, port))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if how == "torchrun" else []
    env = environment({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)})
    running = subprocess.Popen(
        [sys.executable, *launcher, str(copy)],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        running.terminate()  # torchrun ends its workers, which have sessions of their own
        try:
            output, _ = running.communicate(timeout=30)
        finally:
            _end(running)
        return Outcome(None, output)
    _end(running)
    return Outcome(running.returncode, output.replace(port, PORT))


def _end(running: subprocess.Popen[str]) -> None:
    try:
        os.killpg(running.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
