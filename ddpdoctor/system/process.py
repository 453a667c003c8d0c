"""The one way to start a process in the background: in a session of its own, killed with all its children when it is late.

Processes that the user's terminal and its signals belong to (the job of `run`, the ranks of `probe`, the check before a job) are
started where they are waited for, and say why there. Imports little: a probe starts its worker before anything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Done", "LateError", "end_all", "kill", "run", "start"]

REAP_SECONDS = 0.5
"""How long a killed child may take to go away; one in an uninterruptible driver call is left behind to the kernel."""

_running: set[subprocess.Popen[bytes]] = set()
_starting = threading.Lock()


class Done(NamedTuple):
    """A process that ended: `code` is negative for a signal, as in subprocess."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")


class LateError(Exception):
    """The process did not end in time and was killed; `out` is what it had written until then."""

    def __init__(self, command: str, seconds: float, out: bytes = b"") -> None:
        super().__init__(f"{command} did not answer within {seconds:.1f} s")
        self.seconds = seconds
        self.out = out


def run(
    argv: Sequence[str],
    seconds: float,
    *,
    stdin: bytes = b"",
    environ: Mapping[str, str] | None = None,
) -> Done:
    """Run a command to its end, or kill it and its children after `seconds`.

    Raises:
        LateError: the deadline passed.
        OSError: it could not be started.
    """
    with _starting:
        child = start(argv, environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _running.add(child)
    try:
        out, err = child.communicate(stdin, timeout=max(seconds, 0.001))
    except subprocess.TimeoutExpired as late:
        raise LateError(os.path.basename(argv[0]), seconds, late.stdout or b"") from None
    finally:
        _running.discard(child)
        if child.returncode is None:
            kill(child)
    return Done(child.returncode, out, err)


def end_all() -> None:
    """Kill what is still running and start nothing any more: the command is leaving, its threads may still be asking."""
    if _starting.acquire(timeout=1.0):  # never given back
        for child in tuple(_running):
            kill(child)


def start(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    fds: Sequence[int] = (),
    folder: str | None = None,
    in_child: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; whoever starts it ends it. It inherits the descriptors `fds`.

    `environ` None is this process's; `in_child` is called in the child before the command runs.

    Raises:
        OSError: it could not be started.
    """
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=None if environ is None else dict(environ),
        pass_fds=fds,
        cwd=folder,
        preexec_fn=in_child,
        start_new_session=True,
    )


def kill(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL a child's session and reap it, without ever waiting on a process that cannot die."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself in between: nothing is left to kill
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    try:
        child.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return  # stuck in the kernel; the caller already reports that it did not answer
