"""Runs the job with unchanged terminal, streams, signals and exit code, and keeps a bounded copy of its output.

As in a shell, the job leads its own process group, which has the terminal: Ctrl-C and Ctrl-Z reach the job only.
Signals sent to ddpdoctor are forwarded to the job.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from ddpdoctor.system.lifetime import die_with, prepare_to_die_with
from ddpdoctor.system.process import start

__all__ = ["Copy", "JobRun"]

PIECE_BYTES = 1 << 16
HEAD_BYTES = 2 << 20
TAIL_BYTES = 14 << 20
DRAIN_SECONDS = 1.0
"""How long to wait for more output after the job has ended, if a process that it started still has its streams open."""
LOOK_SECONDS = 0.5
"""How often a silent job is polled, in case its end was missed."""
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGWINCH,
)


class Copy:
    """The beginning and the end of an output, and how many bytes between them were dropped."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_room = head_bytes
        self._limit = tail_bytes
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self.left_out = 0

    def add(self, piece: bytes) -> None:
        """Add the next piece of output."""
        if self._head_room:
            self._head.append(piece[: self._head_room])
            piece, self._head_room = piece[self._head_room :], max(0, self._head_room - len(piece))
        if piece:
            self._tail.append(piece)
            self._kept += len(piece)
        while self._kept > self._limit:
            oldest = self._tail.popleft()
            self._kept -= len(oldest)
            self.left_out += len(oldest)

    def content(self) -> bytes:
        """The kept output, with a note where bytes were dropped."""
        gap = f"\n[ddpdoctor: {self.left_out} bytes not kept]\n".encode() if self.left_out else b""
        return b"".join((*self._head, gap, *self._tail))


class JobRun:
    """One run of the job. `run` starts it and returns its exit code when it has ended.

    Args:
        argv: the command.
        environ: its environment.
        when_quiet: called once, when the job has printed nothing for LOOK_SECONDS.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], when_quiet: Callable[[], None] | None = None
    ) -> None:
        self.argv = tuple(argv)
        self._when_quiet = when_quiet
        self.environ = environ
        self.copy = Copy()
        self.signals: list[int] = []
        self._early: list[int] = []
        self._outputs: dict[int, int] = {}
        self._pty: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._terminal = _terminal()
        self._own = os.getpid()

    def run(self) -> int:
        """Start the job and wait for its end: its exit code, or 128 plus the number of the signal that killed it.

        Raises:
            OSError: it could not be started.
        """
        forwarded = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, self._pass_on) for number in forwarded}
        # Without this, taking the terminal back from the background would stop ddpdoctor.
        before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        old = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        try:
            self._start()
            self._serve(wake)
        finally:
            signal.set_wakeup_fd(old)
            self._take_terminal(os.getpgrp())
            for number, handler in before.items():
                signal.signal(number, handler)
            for fd in (*self._outputs, wake, wakes):
                os.close(fd)
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        if code == -signal.SIGINT and self._terminal is not None:
            # Ctrl-C reached the job only: the parent process has to see that ddpdoctor ended by it as well.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.killpg(os.getpgrp(), signal.SIGINT)
        return code if code >= 0 else 128 - code

    def _start(self) -> None:
        """Start the job as a shell would: it leads a process group, has the terminal and inherits open descriptors."""
        prepare_to_die_with()
        ours, theirs = self._streams()
        try:
            self._child = start(
                self.argv,
                self.environ,
                stdin=None,
                stdout=theirs[0],
                stderr=theirs[1],
                fds=None,  # the parent's descriptors, such as MPI's PMI_FD, but none of ddpdoctor's own
                in_child=self._as_leader,
                is_foreground=True,
            )
        except OSError:
            for fd in set(ours):
                os.close(fd)
            raise
        finally:
            for fd in set(theirs):
                os.close(fd)
        for number, fd in ((1, ours[0]), (2, ours[1])):
            self._outputs.setdefault(fd, number)
        for number in self._early:
            self._send(self._child.pid, number)

    def _as_leader(self) -> None:
        """In the child: create a process group and take the terminal.

        If ddpdoctor is killed, the job gets SIGTERM, on which launchers end their ranks: its output has no reader.
        """
        die_with(self._own, signal.SIGTERM)
        os.setpgid(0, 0)
        self._take_terminal(os.getpid())
        for number in (*PASSED_ON, signal.SIGTTOU, signal.SIGCHLD):
            if number is signal.SIGTTOU or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    def _streams(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both ends of the job's stdout and stderr: a pty if ddpdoctor's own stream is a terminal, else a pipe."""
        first = self._stream(1)
        second = first if _is_same(1, 2) else self._stream(2)
        return (first[0], second[0]), (first[1], second[1])

    def _stream(self, number: int) -> tuple[int, int]:
        if not os.isatty(number):
            return os.pipe()
        if self._pty is None:
            self._pty, slave = pty.openpty()
            tty.setraw(slave)  # the real terminal converts line ends
            self._size()
            return self._pty, slave
        return os.pipe()  # two different terminals are rare: the second becomes a pipe

    def _size(self) -> bool:
        """Resize the job's pty to the real terminal; whether the size changed."""
        if self._pty is None:
            return False
        real = next((number for number in (1, 2) if os.isatty(number)), self._pty)
        try:
            size = fcntl.ioctl(real, termios.TIOCGWINSZ, b"\0" * 8)
            if size == fcntl.ioctl(self._pty, termios.TIOCGWINSZ, b"\0" * 8):
                return False
            fcntl.ioctl(self._pty, termios.TIOCSWINSZ, size)
        except OSError:
            return False  # the terminal was closed
        return True

    def _serve(self, wake: int) -> None:
        """Copy the output until the job has ended and its streams are empty."""
        end: float | None = None
        while self._outputs or self._status is None:
            left = LOOK_SECONDS if end is None else max(0.0, end - time.monotonic())
            ready, _, _ = select.select([*self._outputs, wake], [], [], left)
            for fd in ready:
                if fd == wake:
                    os.read(wake, 4096)
                else:
                    self._copy(fd)
            self._look()
            if self._status is None and self._child is not None and self._size():
                # The kernel sent SIGWINCH to the job only, before its pty had the new size.
                os.killpg(self._child.pid, signal.SIGWINCH)
            if self._status is None and not ready and self._when_quiet is not None:
                self._when_quiet()
                self._when_quiet = None
            if self._status is not None:
                end = end or time.monotonic() + DRAIN_SECONDS
                if not ready and time.monotonic() >= end:
                    return  # a process that the job started is still running

    def _copy(self, fd: int) -> None:
        try:
            piece = os.read(fd, PIECE_BYTES)
        except OSError:
            piece = b""  # EIO: the job's end of the pty was closed
        if piece:
            self.copy.add(piece)
            if _write(self._outputs[fd], piece):
                return
        os.close(fd)
        del self._outputs[fd]

    def _look(self) -> None:
        """Check whether the job has ended, and stop ddpdoctor when the job is stopped."""
        assert self._child is not None
        while self._status is None:
            pid, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._status = status
                self._child.returncode = os.waitstatus_to_exitcode(status)
            elif self._terminal is not None or signal.SIGTSTP in self.signals:
                self._stop()
            else:
                return  # stopped with SIGSTOP: the sender has to continue it

    def _stop(self) -> None:
        """The job was stopped (Ctrl-Z): give the terminal back and stop as well; on SIGCONT, continue the job."""
        self._take_terminal(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        assert self._child is not None
        self._take_terminal(self._child.pid)
        self._size()
        os.killpg(self._child.pid, signal.SIGCONT)

    def _take_terminal(self, group: int) -> None:
        if self._terminal is None:
            return
        try:
            os.tcsetpgrp(self._terminal, group)
        except OSError:
            return  # the shell moved ddpdoctor to the background

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGWINCH:
            self._size()
        if self._child is None:
            self._early.append(number)  # the job is being started and may already run
        elif self._status is None:
            self._send(self._child.pid, number)

    def _send(self, pid: int, number: int) -> None:
        self.signals.append(number)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return  # it has just ended


def _terminal() -> int | None:
    """The controlling terminal, if ddpdoctor is in its foreground group and writes to it: with `| less`, less needs it."""
    for number in (0, 1, 2) if os.isatty(1) else ():
        try:
            if os.isatty(number) and os.tcgetpgrp(number) == os.getpgrp():
                return number
        except OSError:
            continue  # not the controlling terminal
    return None


def _is_same(one: int, other: int) -> bool:
    """Whether two streams are the same file: then the job gets one stream, and their order is kept."""
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _write(number: int, piece: bytes) -> bool:
    """Write everything; False when the reader has closed its end."""
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:
            select.select([], [number], [], LOOK_SECONDS)
        except OSError:
            return False
    return True
