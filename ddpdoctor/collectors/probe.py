"""The local probe for `ddpdoctor check`: ranks of this machine, in processes of their own, beside everything else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.machine import Deadline
from ddpdoctor.collectors.process import kill
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.probe import Probe

__all__ = ["LocalProbe", "start"]

ENDING_SECONDS = 2.0
"""What the probe may need beyond its own timeout to say what it saw."""


class LocalProbe:
    """A local probe that runs. `finish` waits for it, `stop` ends it; one of them must be called."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def finish(self, deadline: Deadline) -> Probe:
        """What the probe saw.

        Raises:
            Missing: it did not end in time or ended without a word.
        """
        try:
            out, err = self.process.communicate(timeout=deadline.left + ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            raise Missing("the local probe did not end in time") from None
        finally:
            self.stop()
        try:
            return decode(Probe, json.loads(out))
        except (json.JSONDecodeError, UnicodeDecodeError, FactsError):
            words = err.decode("utf-8", "replace").strip().splitlines()
            last = words[-1] if words else f"exit code {self.process.returncode}"
            raise Missing(f"the local probe could not run: {last}") from None

    def stop(self) -> None:
        """End it and everything that it started."""
        if self.process.poll() is None:
            kill(self.process)


def start(nproc: int, backend: str = "auto", seconds: float = 60.0) -> LocalProbe:
    """Start `nproc` ranks on this machine; they import torch while the caller does something else.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    if importlib.util.find_spec("torch") is None:
        raise Missing(f"torch is not installed for {sys.executable}: no ranks can be probed", Why.NOT_HERE)
    words = ["--nproc", str(nproc), "--backend", backend, "--timeout", f"{seconds:.1f}"]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "ddpdoctor.probe.local", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise Missing(f"the local probe could not be started: {error.strerror}") from None
    return LocalProbe(process)
