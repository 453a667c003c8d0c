"""Nothing outlives the process that made it, not even when that is killed: child processes and temporary folders."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

from ddpdoctor.system.process import LateError, output_within, start

__all__ = ["TemporaryFolder", "die_with", "prepare_to_die_with", "temporary_folder"]

PR_SET_PDEATHSIG = 1
REMOVE = 'trap "" INT TERM HUP QUIT PIPE; read -r answer; [ "$answer" = keep ] || rm -rf -- "$1"'
"""A shell that waits until its standard input ends, which also happens when ddpdoctor is killed."""
ENDING_SECONDS = 5.0


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when the thread that started it ends for any reason."""
    prepare_to_die_with()
    _die_with(number)
    if os.getppid() != parent:
        os._exit(0)


def prepare_to_die_with() -> None:
    """Load what `die_with` needs, before a fork in which nothing should be imported."""
    import ctypes  # imported by the processes that need it only

    global _libc
    _libc = _libc or ctypes.CDLL(None, use_errno=True)


_libc: object = None


def _die_with(number: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)  # type: ignore[attr-defined]


class TemporaryFolder:
    """A new folder that is removed by `remove`, or when this process ends without it, unless `keep` was called before.

    Raises:
        OSError: no folder can be made.
    """

    def __init__(self, prefix: str = "ddpdoctor_") -> None:
        import tempfile  # with what follows, imported by the commands that need it only

        self.path = tempfile.mkdtemp(prefix=prefix)
        self._is_kept = False
        self._watcher: subprocess.Popen[bytes] | None = None
        try:
            self._watcher = start(
                ["/bin/sh", "-c", REMOVE, "sh", self.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                folder="/",
            )
        except OSError:
            return  # without a shell, or with too few processes, only a SIGKILL leaves the folder

    def remove(self) -> None:
        """Remove the folder unless it is kept."""
        if self._is_kept:
            return
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        self._answer(b"")

    def keep(self) -> None:
        """Leave the folder to the user."""
        self._is_kept = True
        self._answer(b"keep\n")

    def _answer(self, answer: bytes) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        try:
            output_within(watcher, ENDING_SECONDS, answer)
        except LateError:
            return  # the file system does not answer; the shell ends when it does


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """The path of a folder that is removed at the end of the block, or of this process.

    Raises:
        OSError: no folder can be made.
    """
    folder = TemporaryFolder()
    try:
        yield folder.path
    finally:
        folder.remove()
