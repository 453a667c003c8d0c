"""The folder of one rehearsal: settings, socket, outputs, and the hook on a module path of its own."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["RehearsalFolder"]

HOOK = Path(__file__).parent / "hook"
EXTENDS = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"


PREFIX = "ddpdoctor_rehearsal_"
SOCKET = "records"
SHORT_FOLDER = "/tmp"
LONGEST_SOCKET_BYTES = 107
"""The longest path of a Unix socket: `sun_path` of unix(7) without its last zero."""
OWNER = "owner"
"""The file with the process that made a folder, and when that process began."""


def _began(pid: int) -> str:
    """When a process began, in clock ticks since the machine's start; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _base() -> str:
    """The folder for temporary files, or /tmp if its path is too long for a socket in it."""
    folder = tempfile.gettempdir()
    is_short = len(os.fsencode(os.path.join(folder, f"{PREFIX}12345678", SOCKET))) <= LONGEST_SOCKET_BYTES
    return folder if is_short or not os.access(SHORT_FOLDER, os.W_OK | os.X_OK) else SHORT_FOLDER


def _remove_orphans() -> None:
    """Remove folders of this user whose process has ended without removing them: all of it was killed at once."""
    for each in Path(_base()).glob(f"{PREFIX}*"):
        try:
            pid, _, began = (each / OWNER).read_text().partition(" ")
            is_own = each.stat().st_uid == os.getuid()
        except OSError:
            continue  # it is just being made, or belongs to another user
        if is_own and pid.isdecimal() and _began(int(pid)) != began:
            shutil.rmtree(each, ignore_errors=True)


class RehearsalFolder:
    """A temporary folder; `close` removes it."""

    def __init__(self) -> None:
        _remove_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        (self.folder / OWNER).write_text(f"{os.getpid()} {_began(os.getpid())}")
        self.modules = self.folder / "modules"
        self.config = self.folder / "settings.json"
        self.socket = self.folder / SOCKET
        self.lifeline = self.folder / "lifeline"
        self.overlay = self.folder / "overlay"
        self.overlay.mkdir()
        self.last_step = self.folder / "last_step"
        self.last_step.write_bytes(b"")
        package = self.modules / "ddpdoctor" / "rehearsal"
        shutil.copytree(HOOK, package / "hook", ignore=shutil.ignore_patterns("__pycache__"))
        for each in (package.parent, package):
            (each / "__init__.py").write_text(EXTENDS)
        shutil.copyfile(HOOK / "site_start.py", self.modules / "sitecustomize.py")
        os.mkfifo(self.lifeline)

    @property
    def start(self) -> Path:
        """The program that starts the ranks."""
        return self.modules / "ddpdoctor" / "rehearsal" / "hook" / "start.py"

    def write(self, settings: dict[str, Any]) -> None:
        """Write the settings that the hook reads."""
        self.config.write_text(json.dumps(settings))

    def output(self, index: int) -> Path:
        """The pipe that takes the output of a rank."""
        return self.folder / f"output{index}"

    def stacks(self, index: int) -> Path:
        """Where a rank writes its Python stack when it is asked to."""
        return self.folder / f"stack{index}"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
