"""Real jobs of several ranks on one GPU (or on the CPU with Gloo): started, disturbed, examined with ddpdoctor, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "rank_program.py"
ROOT = Path(__file__).parent.parent.parent
TIMEOUT_SECONDS = 10.0
"""The timeout of the process group: NCCL's watchdog ends the ranks after it."""
HEARTBEAT_SECONDS = 20
KILL_SECONDS = 10.0
VICTIM = 1
STUCK_SECONDS = 1.5
STOPS = {"stopped-rank": signal.SIGSTOP, "killed-rank": signal.SIGKILL}
WATCHED = ("stopped-rank", "skip", "shape")
"""Scenarios in which the ranks wait long enough for `ddpdoctor hang`."""


@dataclass(frozen=True)
class Scenario:
    """One job. `codes` are the causes of which triage should name one; empty where the job succeeds."""

    name: str
    ranks: int
    codes: tuple[str, ...] = ()
    shares_host: bool = False
    seconds: float = 45.0


@dataclass
class Outcome:
    """What became of it. `exits` are the exit codes by rank, None for a rank that had to be killed at the end."""

    scenario: Scenario
    exits: list[int | None] = field(default_factory=list)
    seconds: float = 0.0
    triage: list[str] = field(default_factory=list)
    hang: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def is_as_expected(self) -> bool:
        """The job ended as its scenario says, and triage named the cause."""
        if self.problem:
            return False
        if not self.scenario.codes:
            return all(code == 0 for code in self.exits) and not [c for c in self.triage if "error" in c]
        return any(code != 0 for code in self.exits) and any(c.split()[0] in self.scenario.codes for c in self.triage)


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(scenario: Scenario, rank: int, port: int, folder: Path) -> dict[str, str]:
    """The variables of one rank: torchrun's, and those that make torch and NCCL leave evidence."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))
    }
    dumps = str(folder / "dump_")
    return {
        **kept,
        "RANK": str(rank),
        "WORLD_SIZE": str(scenario.ranks),
        "LOCAL_RANK": str(rank) if scenario.shares_host else "0",
        "LOCAL_WORLD_SIZE": str(scenario.ranks) if scenario.shares_host else "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **({} if scenario.shares_host else {"NCCL_HOSTID": f"host{rank}"}),
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(HEARTBEAT_SECONDS),
        "TORCH_CPP_LOG_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def ranks(scenario: Scenario, folder: Path, timeout: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks of a job, each with a log of its own; all are killed in the end."""
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as logs:
        try:
            for rank in range(scenario.ranks):
                log = logs.enter_context((folder / f"rank{rank}.log").open("wb"))
                command = [sys.executable, str(PROGRAM), scenario.name, str(timeout)]
                variables = environment(scenario, rank, port, folder)
                running.append(
                    subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
                )
            yield running
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                with contextlib.suppress(
                    subprocess.TimeoutExpired
                ):  # a process that waits in the driver cannot be killed
                    process.wait(KILL_SECONDS)


def wait_for_line(log: Path, line: str, process: subprocess.Popen[bytes], until: float) -> bool:
    """Whether a rank printed this line before `until` (a monotonic time), and before it ended."""
    while time.monotonic() < until:
        if log.exists() and f"{line}\n" in log.read_text(errors="replace"):
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def play(scenario: Scenario, folder: Path, timeout: float = TIMEOUT_SECONDS) -> Outcome:
    """Run one job to its end, disturb it as its scenario says, and let ddpdoctor look at it."""
    folder.mkdir(parents=True)
    outcome, started = Outcome(scenario), time.monotonic()
    until = started + scenario.seconds
    with ranks(scenario, folder, timeout) as running:
        victim = running[min(VICTIM, scenario.ranks - 1)]
        number = STOPS.get(scenario.name)
        if number is not None:
            if wait_for_line(folder / f"rank{VICTIM}.log", "step 3", victim, until):
                victim.send_signal(number)
            else:
                outcome.problem = f"rank {VICTIM} did not get to step 3"
        if scenario.name in WATCHED and not outcome.problem:
            wait_for_line(folder / "rank0.log", "step 3", running[0], until)
            time.sleep(STUCK_SECONDS)
        if scenario.name in WATCHED and all(process.poll() is None for process in running):
            outcome.hang = codes(doctor("hang", *(str(process.pid) for process in running), folder=folder))
        others = [process for process in running if number is not signal.SIGSTOP or process is not victim]
        while time.monotonic() < until and any(process.poll() is None for process in others):
            time.sleep(0.1)
        outcome.exits = [process.poll() for process in running]
    outcome.seconds = time.monotonic() - started
    outcome.triage = codes(doctor("triage", str(folder), folder=folder))
    outcome.files = sorted(path.name for path in folder.iterdir())
    return outcome


def doctor(*words: str, folder: Path, seconds: float = 60.0) -> dict[str, Any]:
    """The report of one ddpdoctor command, written beside the logs; {} if it gave none."""
    report = folder.parent / f"{folder.name}.{words[0]}.json"
    command = [sys.executable, "-m", "ddpdoctor", *words, "--format", "json", "--output", str(report)]
    try:
        done = subprocess.run(
            command, env=with_doctor(), capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return {}
    report.with_suffix(".txt").write_text(done.stdout + done.stderr)
    if not report.exists():
        return {}
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def with_doctor() -> dict[str, str]:
    """The environment in which ddpdoctor of this checkout is found."""
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def codes(report: dict[str, Any]) -> list[str]:
    """`LOG021 error cause rank 1`, for each finding."""
    findings: Sequence[dict[str, Any]] = report.get("findings", ())
    return [
        " ".join(
            [each["code"], each["severity"], each["role"]]
            + ([f"rank {each['where']['rank']}"] if each["where"]["rank"] is not None else [])
        )
        for each in findings
    ]
