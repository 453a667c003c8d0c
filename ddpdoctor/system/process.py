"""The only way to start a background process: in its own session, killed with all its children on a timeout.

Foreground processes with the user's terminal and signals (the job of `run`, the ranks of `probe`, the check before a job) are
started by their callers. Imports little: a probe starts its worker before anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Done", "LateError", "end_all", "kill", "no_input", "run", "start"]

REAP_SECONDS = 0.5
"""How long to wait for a killed child; one in an uninterruptible driver call is abandoned."""

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
    """The process timed out and was killed; `out` is its output until then."""

    def __init__(self, command: str, seconds: float, out: bytes = b"") -> None:
        super().__init__(f"{command} timed out after {seconds:.1f} s")
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
        LateError: it timed out.
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
    """Kill all running children and start no more: the command is exiting, but its threads may still run."""
    if _starting.acquire(timeout=1.0):  # never released
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
    """Start a command in its own session; the caller has to end it. It inherits the descriptors `fds`.

    `environ` None is this process's; `in_child` is called in the child before the command runs.

    Raises:
        OSError: it could not be started.
    """
    with no_input() as nothing:
        return subprocess.Popen(
            argv,
            stdin=nothing if stdin == subprocess.DEVNULL else stdin,
            stdout=stdout,
            stderr=stderr,
            env=None if environ is None else dict(environ),
            pass_fds=fds,
            cwd=folder,
            preexec_fn=in_child,
            start_new_session=True,
        )


@contextlib.contextmanager
def no_input() -> Iterator[int]:
    """A descriptor without anything to read, for the standard input of a child. A chroot may have no /dev/null.

    Raises:
        OSError: out of descriptors.
    """
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
    except FileNotFoundError:
        nothing, writer = os.pipe()
        os.close(writer)
    try:
        yield nothing
    finally:
        os.close(nothing)


def kill(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL a child's session and reap it, without waiting forever for an unkillable process."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has already ended: nothing to kill
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    try:
        child.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return  # stuck in the kernel; the caller already reports the timeout
