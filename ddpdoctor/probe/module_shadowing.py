"""Files in the job's working folder that shadow modules which torch imports, such as random.py or torch/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import NamedTuple

from ddpdoctor.system.lifetime import die_with
from ddpdoctor.system.process import LateError, kill, output_within, start

__all__ = ["ShadowedModule", "explain", "files", "import_failure"]

SECONDS = 30
STEP_SECONDS = 0.5
IMPORT = (
    f"import faulthandler; faulthandler.dump_traceback_later({SECONDS}, exit=True); import torch, torch.distributed"
)
"""If the import hangs, it ends with its stack, which shows whether a file of this folder is involved."""


class ShadowedModule(NamedTuple):
    """A shadowed module, and the file that a script in this folder imports instead."""

    module: str
    file: str


def files(folder: str) -> list[ShadowedModule]:
    """The modules in use that files of a folder shadow."""
    try:
        folder = os.path.abspath(folder)
        entries = os.listdir(folder)
    except OSError:
        return []  # the folder is unreadable for Python as well
    used = {name.partition(".")[0] for name in sys.modules} | {"torch"}
    elsewhere = [path for path in sys.path if path not in ("", folder)]
    modules = []
    for entry in entries:
        name = entry.removesuffix(".py")
        file = os.path.join(folder, entry) if name != entry else os.path.join(folder, entry, "__init__.py")
        if name not in used or name in sys.builtin_module_names or not os.path.isfile(file):
            continue
        if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None:
            modules.append(ShadowedModule(name, file))
    return modules


def import_failure(found: list[ShadowedModule], beat: Callable[[], None], folder: str = "") -> str | None:
    """Python's error when a script in that folder imports torch; None if that works, or nothing is shadowed.

    It takes as long as importing torch; `beat` is called meanwhile.
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
        return None  # unknown whether they cause the error
    for _ in range(int(2 * SECONDS / STEP_SECONDS)):
        try:
            errors = output_within(process, STEP_SECONDS)[1].decode("utf-8", "replace")
        except LateError:
            beat()
            continue
        if not process.returncode:
            return None
        return f"{errors}\nimporting torch timed out after {SECONDS} s" if errors.startswith("Timeout (") else errors
    kill(process)
    return None  # even its stack is unknown


def explain(words: str, found: list[ShadowedModule]) -> ShadowedModule | None:
    """The shadowed module that an error message names, by its file or its name."""
    by_file = (shadowed for shadowed in found if shadowed.file in words)
    return next(by_file, None) or next((shadowed for shadowed in found if f"'{shadowed.module}'" in words), None)
