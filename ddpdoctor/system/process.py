"""The only way to start a process, and to wait for one with a deadline.

A background process has its own session and is killed with all its children on a timeout; a foreground process has the user's
terminal and signals. Imports little: a probe starts its worker before anything else. Not started here are forks of a process
that has loaded something: `system/pools.py`, `probe/fork_template.py` and `rehearsal/hook/start.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Done", "LateError", "end_all", "ended_within", "kill", "output_within", "run", "start"]

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
        out, err = output_within(child, seconds, stdin)
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
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    fds: Sequence[int] | None = (),
    folder: str | None = None,
    in_child: Callable[[], None] | None = None,
    is_foreground: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command, which the caller has to end.

    Args:
        environ: its environment; None for this process's.
        stdin: None for this process's.
        fds: the descriptors that it inherits; None for all that are inheritable.
        in_child: called in the child before the command runs.
        is_foreground: it stays in this process's session and group, and gets the signals of the user's terminal.

    Raises:
        OSError: it could not be started.
    """
    with _no_input() if stdin == subprocess.DEVNULL else contextlib.nullcontext(stdin) as given:
        return subprocess.Popen(
            argv,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            env=None if environ is None else dict(environ),
            pass_fds=fds or (),
            close_fds=fds is not None,
            cwd=folder,
            preexec_fn=in_child,
            start_new_session=not is_foreground,
        )


def ended_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a child, as in subprocess; None if it still runs after `seconds`."""
    try:
        return child.wait(max(seconds, 0.001))
    except subprocess.TimeoutExpired:
        return None


def output_within(child: subprocess.Popen[bytes], seconds: float, data: bytes | None = None) -> tuple[bytes, bytes]:
    """The output and the errors of a child that has pipes for them, which gets `data` on a pipe, up to its end.

    Raises:
        LateError: it still runs after `seconds`; this can be called again, without `data`.
    """
    try:
        return child.communicate(data, timeout=max(seconds, 0.001))
    except subprocess.TimeoutExpired as late:
        words = child.args if isinstance(child.args, (list, tuple)) else ("process",)
        raise LateError(os.path.basename(str(words[0])), seconds, late.stdout or b"") from None


@contextlib.contextmanager
def _no_input() -> Iterator[int]:
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
    ended_within(child, REAP_SECONDS)  # else it is stuck in the kernel; the caller already reports the timeout
