"""The probe as a collector: ranks of this machine alone, or this process as one rank of a job; beside everything else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.machine import Deadline
from ddpdoctor.collectors.process import kill
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.probe import Probe

__all__ = ["Answer", "RunningProbe", "join", "start"]

ENDING_SECONDS = 2.0
"""What the probe may need beyond its own timeout to say what it saw."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe saw. `is_first`: this is the lowest rank of its node that is alive; `is_head`: it is rank 0."""

    probe: Probe
    is_first: bool = True
    is_head: bool = True


class RunningProbe:
    """A probe that runs. `finish` waits for it, `stop` ends it; one of them must be called."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def finish(self, deadline: Deadline) -> Answer:
        """What the probe saw.

        Raises:
            Missing: it did not end in time or ended without a word.
        """
        try:
            out, err = self.process.communicate(timeout=deadline.left + ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            raise Missing("the probe did not end in time") from None
        finally:
            self.stop()
        try:
            told: dict[str, Any] = json.loads(out)
            probe = decode(Probe, told.pop("probe"))
            return Answer(probe, bool(told.get("is_first", True)), bool(told.get("is_head", True)))
        except (json.JSONDecodeError, UnicodeDecodeError, FactsError, KeyError):
            words = err.decode("utf-8", "replace").strip().splitlines()
            last = words[-1] if words else f"exit code {self.process.returncode}"
            raise Missing(f"the probe could not run: {last}") from None

    def stop(self) -> None:
        """End it and everything that it started."""
        if self.process.poll() is None:
            kill(self.process)


def start(nproc: int, backend: str = "auto", seconds: float = 60.0) -> RunningProbe:
    """Start `nproc` ranks on this machine; they import torch while the caller does something else.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    words = ["--nproc", str(nproc), "--backend", backend, "--timeout", f"{seconds:.1f}"]
    return _run("ddpdoctor.probe.local", words, None)


def join(environ: Mapping[str, str], join_seconds: float, seconds: float) -> RunningProbe:
    """Be the rank of a job that `environ` says, together with the others.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    words = [
        "--hand-over",
        "--job",
        str(os.getppid()),
        "--join-timeout",
        f"{join_seconds:.1f}",
        "--timeout",
        f"{seconds:.1f}",
    ]
    return _run("ddpdoctor.probe", words, environ)


def _run(module: str, words: Sequence[str], environ: Mapping[str, str] | None) -> RunningProbe:
    if importlib.util.find_spec("torch") is None:
        raise Missing(f"torch is not installed for {sys.executable}: no ranks can be probed", Why.NOT_HERE)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise Missing(f"the probe could not be started: {error.strerror}") from None
    return RunningProbe(process)
