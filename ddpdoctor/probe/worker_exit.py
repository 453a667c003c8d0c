"""How a worker ended: its own report, else its exit code or signal and its last output."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.proc import ForeignProcess
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.worker_output import WorkerOutput

__all__ = ["EndedWorker", "exit_observation", "reported_failure", "wait_for_end"]

ENDING_SECONDS = 1.5
"""On a busy machine, how long a process with many threads may take from closing its files to its end."""
NO_FILES = "Too many open files"


class EndedWorker(Protocol):
    """The part of a worker's handle that is needed to report how the worker ended."""

    rank_env: RankEnv
    phase: str
    pid: int | None
    printed: WorkerOutput
    frames: list[tuple[str, int, str]]

    def observe(self, kind: Kind, message: str) -> Observation:
        """An observation about this worker's rank."""


def reported_failure(worker: EndedWorker, error: Mapping[str, Any]) -> Observation:
    """The failure that the worker reported."""
    kind = Kind.OUT_OF_FILES if NO_FILES in error["message"] else Kind(error["kind"])
    problem = {
        Kind.IMPORT_FAILED: "could not import torch",
        Kind.DUPLICATE_GPU: "has the same GPU as another rank",
        Kind.PEER_ERROR: f"lost its peers in {worker.phase}",
        Kind.WRONG_VALUE: "got a wrong result",
        Kind.OUT_OF_FILES: f"reached its open files limit in {worker.phase}",
    }.get(kind, f"failed in {worker.phase}")
    details = {name: error[name] for name in ("file", "line", "function", "value", "expected") if name in error}
    return replace(worker.observe(kind, f"{worker.rank_env.name} {problem}: {error['message']}"), **details)


def exit_observation(worker: EndedWorker, code: int) -> Observation:
    """How it ended: a signal, an exit code, out of file descriptors; or its peers, if Gloo aborts because it lost them."""
    name = _signal(-code) if code < 0 else None
    last = worker.printed.last_error_line()
    if NO_FILES in last:
        problem = f"reached its open files limit in {worker.phase}"
        return worker.observe(Kind.OUT_OF_FILES, f"{worker.rank_env.name} {problem}: {last}")
    if name == "SIGABRT" and worker.phase not in ("start", "import") and worker.printed.lost_its_peers:
        message = f"{worker.rank_env.name} lost its peers in {worker.phase} and aborted: {last}"
        return worker.observe(Kind.PEER_ERROR, message)
    how = f"was killed by {name}" if name else f"exited with code {code}"
    message = f"{worker.rank_env.name} died in {worker.phase}: its worker (pid {worker.pid}) {how}"
    found = worker.observe(Kind.DIED, f"{message}: {last}" if last else message)
    file, line, function = worker.frames[0] if worker.frames else (None, None, None)
    return replace(found, signal=name, exit_code=None if name else code, file=file, line=line, function=function)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # realtime signals between the first and the last have no name


def wait_for_end(process: subprocess.Popen[bytes] | ForeignProcess) -> int | None:
    """The exit code of a process that has closed its files and should end soon. None if it keeps running."""
    end = time.monotonic() + ENDING_SECONDS
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.02)
    return code
