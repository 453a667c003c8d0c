"""How the doctor's own modules are started: no file of the folder that it is used in takes the place of a module, and no
file that they open that of a standard stream.

`python -m` and `python -c` look for every module in the current folder first, and a job's folder may well hold a
random.py or a signal.py.
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
    """The command that runs a module of this package as `python -m` does; arguments go after it."""
    return [sys.executable, "-c", START.format(os.path.dirname(os.path.dirname(__file__))), module]


def open_missing_streams() -> None:
    """Started with closed streams (`<&-`, `>&-`), the first files that we open would take their places, and a child's own
    would be put over them. What is printed then goes nowhere.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (stays open as long as the process)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def leave_folder() -> None:
    """Do the same for this process, which was started with `python -m`: forget the folder that this put first."""
    is_safe = getattr(sys.flags, "safe_path", False)
    if not is_safe and sys.path and sys.path[0] in ("", _folder()):
        del sys.path[0]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted: nothing can be found there
