"""The local probe of `ddpdoctor check`, started before anything else is imported: importing torch takes longest.

Only if the command line and the environment determine what will be probed; otherwise the probe is
started when the command line has been read. The caller of `take` must end the process; one that was not taken ends with
`stop`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["CPU_RANKS", "GPU_NODES", "start", "stop", "take"]

CPU_RANKS = 2
"""Number of ranks that are probed on a machine without a GPU."""

GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device nodes that show a GPU driver: one rank starts per GPU that CUDA sees, and these are not counted yet."""

HARMLESS = ("-q", "--quiet", "-v", "--verbose", "--no-color")
"""Options that do not affect the probe."""
WITH_VALUE = ("--format", "--output", "--select", "--ignore", "--fail-on")
OF_THE_PROBE = (b"no-probe", b"no-meet", b"timeout")
"""Settings that change whether, or for how long, ranks are probed."""
SECONDS = 108.0
"""Seconds that the default `--timeout` of `check` leaves for the examination."""

_started: list[subprocess.Popen[bytes]] = []


def start(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start the local ranks if these words and this environment are a plain `ddpdoctor check`."""
    if not _is_plain(words) or any(name.endswith(("RANK", "PROCID", "WORLD_SIZE")) for name in environ):
        return
    from importlib.util import find_spec

    if _may_have_settings(environ):
        return
    if any(map(os.path.exists, GPU_NODES)) or find_spec("torch") is None:
        return
    from ddpdoctor.probe.worker_start import run_probe

    try:
        _started.append(run_probe("ddpdoctor.probe.local", ["--nproc", str(CPU_RANKS), "--timeout", str(SECONDS)]))
    except OSError:
        return  # it is tried again, and reported, when its turn comes


def _may_have_settings(environ: Mapping[str, str]) -> bool:
    """Whether settings files may affect the probe: they are read with the command line."""
    from ddpdoctor.app.settings_files import project_files, read_bytes, site_file

    files = [*project_files(), site_file(environ)]
    return any(word in read_bytes(path) for path in files if path is not None for word in OF_THE_PROBE)


def _is_plain(words: Sequence[str]) -> bool:
    """`check` with options about the report only: no launch line, no facts, no time limits."""
    return words[:1] == ["check"] and all(
        word in HARMLESS
        or word.startswith(tuple(f"{option}=" for option in WITH_VALUE))
        or word in WITH_VALUE
        or (before in WITH_VALUE and not word.startswith("-"))
        for before, word in itertools.pairwise(words)
    )


def take() -> subprocess.Popen[bytes] | None:
    """The process that was started early, None without one."""
    return _started.pop() if _started else None


def stop() -> None:
    """End the process if it was not taken."""
    process = take()
    if process is not None:
        from ddpdoctor.system.process import kill

        kill(process)
