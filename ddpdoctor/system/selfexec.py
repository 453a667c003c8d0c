"""Starts ddpdoctor's own modules safely: files in the current folder cannot shadow modules, and closed standard streams are
reopened.

`python -m` and `python -c` search every module in the current folder first, and a job's folder may contain a random.py or
a signal.py.
"""

from __future__ import annotations

import os
import sys

__all__ = ["command", "leave_folder", "open_missing_streams"]

START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), {!r}]; sys.argv.pop(0);"
    " import runpy; runpy.run_module(sys.argv[0], None, '__main__', True)"
)


def command(module: str) -> list[str]:
    """The command that runs a module of this package like `python -m`; append arguments to it."""
    return [sys.executable, "-c", START.format(os.path.dirname(os.path.dirname(__file__))), module]


def open_missing_streams() -> None:
    """Open `/dev/null` for closed standard streams (`<&-`, `>&-`). Otherwise the first opened files would get their
    descriptors, and a child's streams would replace them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (stays open as long as the process)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


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
