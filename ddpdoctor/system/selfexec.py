"""Starts ddpdoctor's own modules safely: files in the current folder cannot shadow modules, and closed standard streams are
reopened.

`python -m` and `python -c` search every module in the current folder first, and a job's folder may contain a random.py or
a signal.py.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["command", "leave_folder", "open_missing_streams"]

START = (
    "import sys; s = sys.modules['_signal']; s.getsignal(2) is s.default_int_handler and s.signal(2, s.SIG_DFL);"
    " sys.path[:] = [*filter(None, sys.path), {!r}]; sys.argv.pop(0);"
    " import runpy; runpy.run_module(sys.argv[0], None, '__main__', True)"
)


def command(module: str) -> list[str]:
    """The command that runs a module of this package like `python -m`; append arguments to it."""
    return [sys.executable, "-c", START.format(os.path.dirname(os.path.dirname(__file__))), module]


def open_missing_streams() -> None:
    """Open `/dev/null`, if there is one, for closed standard streams (`<&-`, `>&-`). Otherwise the first opened files would
    get their descriptors, and a child's streams would replace them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(_placeholder(), True)  # it gets the lowest free descriptor: this one
    sys.stdout = sys.stdout or io.TextIOWrapper(_Nowhere(), encoding="utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(_Nowhere(), encoding="utf-8")


def _placeholder() -> int:
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:  # a chroot or container without devices
        return os.open("/", os.O_RDONLY)


class _Nowhere(io.BufferedIOBase):
    """Takes everything that is written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return memoryview(data).nbytes  # type: ignore[arg-type]


def leave_folder() -> None:
    """The same for this process, started with `python -m`: remove the current folder from sys.path."""
    is_safe = getattr(sys.flags, "safe_path", False)
    if not is_safe and sys.path and sys.path[0] in ("", _folder()):
        del sys.path[0]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # the folder was deleted
