"""Processes of the lab: each command with all its children in a PID namespace of its own, its output in unnamed files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

__all__ = ["PATH", "Process", "need"]

PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
"""Where commands are looked for: Debian keeps ip, nft, tc and the Slurm daemons out of an ordinary PATH."""

MARK = "DDPDOCTOR_LAB_COMMAND"
"""The variable by which a command and everything that it started are found in /proc."""

GONE_SECONDS = 10.0
"""How long the kernel may take to bury killed processes on a busy machine."""

# The shell stays as process 1 of the namespace: it buries orphans, and the command is an ordinary process 2, which
# signals end as usual (the kernel shields process 1 from them). Entering a mount namespace loses the directory.
ENTER = 'cd "$1" && shift && "$@"; exit $?'


def need(*commands: str) -> None:
    """Skip the test, with the reason, unless it runs as root and has all of these commands."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the lab makes namespaces")
    missing = [command for command in commands if shutil.which(command, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


class Process:
    """A command that runs in a PID namespace of its own; `kill` ends it and all that it started, whatever they do."""

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        enter: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
    ) -> None:
        """Start `argv`; `enter` is the command prefix (nsenter …) that goes into a host, `env` comes on top of ours."""
        self.argv = [os.fspath(word) for word in argv]
        self._mark = uuid.uuid4().hex
        self._out, self._err = (tempfile.TemporaryFile("a+b") for _ in range(2))  # noqa: SIM115 they live as long as this object  # noqa: SIM115
        for file in (self._out, self._err):
            weakref.finalize(self, file.close)  # it may be read as long as somebody holds the process
        words = [
            *enter,
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            ENTER,
            "sh",
            os.fspath(cwd or os.getcwd()),
        ]
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            self._popen = subprocess.Popen(
                [*words, *self.argv],
                stdin=given,
                stdout=self._out,
                stderr=self._err,
                env={**os.environ, "PATH": PATH, **(env or {}), MARK: self._mark},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        """What it wrote to standard output until now."""
        return _text(self._out.fileno())

    @property
    def err(self) -> str:
        """What it wrote to standard error until now."""
        return _text(self._err.fileno())

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs; negative for a signal, as in subprocess."""
        code = self._popen.poll()
        return 128 - code if code is not None and code > 128 else code

    def wait(self, timeout: float) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds; it is left running.
        """
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(self.argv, timeout, self.out.encode(), self.err.encode()) from None
        code = self.code
        assert code is not None
        return code

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until `text` stands in its output.

        Raises:
            TimeoutError: it does not, after `timeout` seconds or at the end of the process.
        """
        until = time.monotonic() + timeout
        while True:
            ended = self.code is not None
            if text in self.out or text in self.err:
                return
            if ended or time.monotonic() > until:
                raise TimeoutError(f"{text!r} never came from {self.argv}:\n{self.out}\n{self.err}")
            time.sleep(0.02)

    def finish(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Its result; killed with all its children when it is late or the test is interrupted.

        Raises:
            subprocess.TimeoutExpired: it did not end within `timeout` seconds; what it wrote comes along.
        """
        try:
            code = self.wait(timeout)
        finally:
            self.kill()
        return subprocess.CompletedProcess(self.argv, code, self.out, self.err)

    def pids(self, **environ: str) -> list[int]:
        """The processes of this command, itself first, whose environment holds all of these variables: pids(RANK="1").

        The numbers are those of the machine, for os.kill.
        """
        wanted = {f"{name}={value}".encode() for name, value in environ.items()}
        inside = [pid for pid, has in self._marked() if wanted <= has and _number_inside(pid) > 1]
        return sorted(inside, key=_number_inside)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself, as a user or a scheduler would."""
        os.kill(self.pids()[0], number)

    def kill(self) -> None:
        """End the command and everything that it started; returns when all are gone. Safe to call again."""
        until = time.monotonic() + GONE_SECONDS
        while left := [pid for pid, _ in self._marked()]:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended in between
            self._popen.poll()
            assert time.monotonic() < until, f"could not be killed: {self.argv}, processes {left}"
            time.sleep(0.002)
        self._popen.wait(GONE_SECONDS)

    def _marked(self) -> list[tuple[int, set[bytes]]]:
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                has = set((entry / "environ").read_bytes().split(b"\0"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended in between, or is none of ours: ours can be read
            if mark in has:
                found.append((int(entry.name), has))
        return found


def _number_inside(pid: int) -> int:
    """A process's number in its innermost PID namespace; 0 when it is gone or stands outside any namespace of the lab."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return int(numbers[-1]) if len(numbers) > 2 else 0


def _text(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")
