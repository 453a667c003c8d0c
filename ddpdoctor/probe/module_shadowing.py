"""Files of the folder that a job starts in which take the place of modules that torch imports: a random.py, a torch/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import NamedTuple

from ddpdoctor.probe.proc import die_with
from ddpdoctor.system.process import kill, start

__all__ = ["ShadowedModule", "explain", "files", "import_failure"]

SECONDS = 30
STEP_SECONDS = 0.5
IMPORT = (
    f"import faulthandler; faulthandler.dump_traceback_later({SECONDS}, exit=True); import torch, torch.distributed"
)
"""Where it has not ended after so long, it ends with its stack, which shows whether a file of this folder is at work."""


class ShadowedModule(NamedTuple):
    """A module that a script in this folder does not get, and the file that it gets instead."""

    module: str
    file: str


def files(folder: str) -> list[ShadowedModule]:
    """The modules in use here that a folder hides."""
    try:
        folder = os.path.abspath(folder)
        entries = os.listdir(folder)
    except OSError:
        return []  # there is nothing to find in it, for nobody
    used = {name.partition(".")[0] for name in sys.modules} | {"torch"}
    elsewhere = [path for path in sys.path if path not in ("", folder)]
    found = []
    for entry in entries:
        name = entry.removesuffix(".py")
        file = os.path.join(folder, entry) if name != entry else os.path.join(folder, entry, "__init__.py")
        if name not in used or name in sys.builtin_module_names or not os.path.isfile(file):
            continue
        if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None:
            found.append(ShadowedModule(name, file))
    return found


def import_failure(found: list[ShadowedModule], beat: Callable[[], None], folder: str = "") -> str | None:
    """What Python says when a script in that folder imports torch; None when that works, or nothing is hidden.

    That takes as long as importing torch does: `beat` is called all the while.
    """
    if not found:
        return None
    parent = os.getpid()
    try:
        process = start(
            [sys.executable, "-c", IMPORT],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            folder=folder or None,
            in_child=lambda: die_with(parent),
        )
    except OSError:
        return None  # it was not shown that they do any harm
    for _ in range(int(2 * SECONDS / STEP_SECONDS)):
        try:
            words = process.communicate(timeout=STEP_SECONDS)[1].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            beat()
            continue
        if not process.returncode:
            return None
        return f"{words}\ntorch is not imported after {SECONDS} s" if words.startswith("Timeout (") else words
    kill(process)
    return None  # not even its stack was to be had


def explain(words: str, found: list[ShadowedModule]) -> ShadowedModule | None:
    """The hidden module that an error is about, by its file or its name."""
    by_file = (each for each in found if each.file in words)
    return next(by_file, None) or next((each for each in found if f"'{each.module}'" in words), None)
