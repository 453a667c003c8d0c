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


class RehearsalFolder:
    """A temporary folder; `close` removes it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ddpdoctor_rehearsal_"))
        self.modules = self.folder / "modules"
        self.config = self.folder / "settings.json"
        self.socket = self.folder / "records"
        self.lifeline = self.folder / "lifeline"
        self.overlay = self.folder / "overlay"
        self.overlay.mkdir()
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
