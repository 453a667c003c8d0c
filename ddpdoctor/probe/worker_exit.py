"""How a worker ended: what it said itself, else its exit code or signal and its last words."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.proc import Elsewhere
from ddpdoctor.probe.rank_env import Place
from ddpdoctor.probe.worker_output import Heard

__all__ = ["EndedWorker", "death", "told", "wait_for_end"]

ENDING_SECONDS = 1.5
"""How long a process with many threads may take from closing its files to its end, on a busy machine."""
NO_FILES = "Too many open files"


class EndedWorker(Protocol):
    """What is needed of a worker's handle to say how the worker ended."""

    place: Place
    phase: str
    pid: int | None
    heard: Heard
    frames: list[tuple[str, int, str]]

    def observe(self, kind: Kind, message: str) -> Observation:
        """An observation about this worker's rank."""


def told(child: EndedWorker, error: Mapping[str, Any]) -> Observation:
    """What the worker said that it failed with."""
    kind = Kind.OUT_OF_FILES if NO_FILES in error["message"] else Kind(error["kind"])
    words = {
        Kind.IMPORT_FAILED: "could not import torch",
        Kind.DUPLICATE_GPU: "was given a GPU that another rank has",
        Kind.PEER_ERROR: f"lost its peers in {child.phase}",
        Kind.WRONG_VALUE: "got a wrong result",
        Kind.OUT_OF_FILES: f"may not open as many files as it needs in {child.phase}",
    }.get(kind, f"failed in {child.phase}")
    details = {name: error[name] for name in ("file", "line", "function", "value", "expected") if name in error}
    return replace(child.observe(kind, f"{child.place.name} {words}: {error['message']}"), **details)


def death(child: EndedWorker, code: int) -> Observation:
    """What ended it: a signal, an exit code, a lack of files; or its peers, where Gloo aborts because it lost them."""
    name = _signal(-code) if code < 0 else None
    last = child.heard.last_words()
    if NO_FILES in last:
        words = f"may not open as many files as it needs in {child.phase}"
        return child.observe(Kind.OUT_OF_FILES, f"{child.place.name} {words}: {last}")
    if name == "SIGABRT" and child.phase not in ("start", "import") and child.heard.lost_its_peers:
        words = f"{child.place.name} lost its peers in {child.phase} and aborted: {last}"
        return child.observe(Kind.PEER_ERROR, words)
    how = f"was killed by {name}" if name else f"ended with exit code {code}"
    message = f"{child.place.name} died in {child.phase}: its worker (pid {child.pid}) {how}"
    found = child.observe(Kind.DIED, f"{message}: {last}" if last else message)
    file, line, function = child.frames[0] if child.frames else (None, None, None)
    return replace(found, signal=name, exit_code=None if name else code, file=file, line=line, function=function)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # one of the realtime signals between the first and the last has no name


def wait_for_end(process: subprocess.Popen[bytes] | Elsewhere) -> int | None:
    """The exit code of a process that has closed its files: it ends, which takes a moment. None when it runs on."""
    end = time.monotonic() + ENDING_SECONDS
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.02)
    return code
