"""Real ranks for tests: processes with the environment that a launcher would give them, and ways to hurt them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIMS = Path(__file__).parent / "shims"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@dataclass
class Rank:
    """One started rank; `report` is what it wrote with --output."""

    rank: int
    process: subprocess.Popen[str]
    output: Path

    def end(self, seconds: float = 60.0) -> tuple[int, str]:
        """Exit code and all output."""
        try:
            out, _ = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
        return self.process.returncode, out

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.output.read_text())

    def worker(self, seconds: float = 20.0) -> int:
        """The pid of the worker, once it has mapped torch."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for pid in children(self.process.pid):
                if "ddpdoctor.probe.worker" in command(pid) and "libtorch" in maps(pid):
                    return pid
            time.sleep(0.02)
        raise AssertionError("the worker never mapped torch")


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def wait_for(is_there: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def has_place(rank: Rank) -> bool:
    """Whether the supervisor is known to its siblings, though not yet to the store."""
    return f"/{rank.process.pid}\n" in Path("/proc/net/unix").read_text()


def left_over(token: str) -> list[str]:
    """Processes that still carry this token in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [command(int(folder.name))] if state not in "ZX" else []
        except OSError:
            continue
    return found


def start(
    folder: Path,
    rank: int,
    world_size: int,
    port: int,
    *words: str,
    environ: dict[str, str] | None = None,
    name: str = "",
    preexec_fn: Callable[[], object] | None = None,
) -> Rank:
    """Start one plain env:// rank."""
    output = folder / f"report{name or rank}.json"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "SLURM", "OMPI", "PMI"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor.probe", "--format", "json", "--output", str(output), *words],
        env={
            **inherited,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DDPDOCTOR_TEST": str(folder),
            **(environ or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        preexec_fn=preexec_fn,
    )
    return Rank(rank, process, output)


def start_all(folder: Path, world_size: int, *words: str, environ: dict[str, str] | None = None) -> list[Rank]:
    port = free_port()
    return [start(folder, rank, world_size, port, *words, environ=environ) for rank in range(world_size)]


def shim(what: str, rank: int, mark: Path | None = None) -> dict[str, str]:
    """The environment that makes the worker of one rank misbehave."""
    return {
        "PYTHONPATH": os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]),
        "SHIM": what,
        "SHIM_RANK": str(rank),
        **({"SHIM_MARK": str(mark)} if mark else {}),
    }


def causes(report: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(f["code"], f["where"]["rank"]) for f in report["findings"] if f["role"] == "cause"]
