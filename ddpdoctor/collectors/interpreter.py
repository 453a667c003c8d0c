"""The Python that the job would use: version, module path, environment. Another interpreter is queried in a child process."""

from __future__ import annotations

import json
import os
import shutil
import sys

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system import process
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.regular_file import read_regular

__all__ = ["Interpreter", "environment_of", "interpreter_of", "script_python"]

QUESTION = "import json,sys;print(json.dumps([sys.version.split()[0],sys.implementation.cache_tag,sys.path[1:]]))"
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`search_path` is sys.path; `tag` is `cpython-311`."""

    path: str
    version: str
    tag: str
    search_path: tuple[str, ...]


def interpreter_of(machine: Machine) -> Interpreter:
    """The interpreter of `machine.python`.

    Raises:
        OSError: it cannot be started.
        process.LateError: it timed out.
        ValueError: its output is not the expected JSON.
    """
    if machine.python == sys.executable:
        version = ".".join(map(str, sys.version_info[:3]))
        return Interpreter(machine.python, version, sys.implementation.cache_tag or "", tuple(sys.path))
    done = process.run([machine.python, "-c", QUESTION], machine.deadline.cut(SECONDS).left, environ=machine.environ)
    version, tag, search_path = json.loads(done.text)
    return Interpreter(machine.python, version, tag, tuple(search_path))


def script_python(script: str, path: str) -> str | None:
    """The Python in the first line of a script, None if something else runs it (a shim, a binary).

    Args:
        path: PATH, for `#!/usr/bin/env python`.

    Raises:
        OSError: the script cannot be read.
    """
    lines = read_regular(script, 1024).decode("utf-8", "replace").split("\n")
    if not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and os.path.basename(words[0]) == "sh" and len(lines) > 1 and lines[1].startswith("'''exec'"):
        words = (
            lines[1].replace('"', " ").split()[1:]
        )  # pip's workaround for an interpreter path that is too long for the kernel
    if words and os.path.basename(words[0]) == "env":
        words = [shutil.which(word, path=path) or "" for word in words[1:2]]
    return words[0] if words and os.path.basename(words[0]).startswith("python") else None


def environment_of(python: str) -> str | None:
    """sys.prefix of an interpreter, without starting it; None for a shim, which is not a binary.

    Raises:
        OSError: it cannot be read.
    """
    if read_regular(python, 4) != b"\x7fELF":
        return None
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        return os.path.realpath(prefix)
    return os.path.dirname(os.path.dirname(os.path.realpath(python)))
