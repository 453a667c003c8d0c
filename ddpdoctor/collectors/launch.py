"""Collects `launch`: the words after `--`, the `--node` lines, the torch that would parse them, and their script."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.collectors.launch_torch import torch_of
from ddpdoctor.facts.launch.record import Launch, StartedScript
from ddpdoctor.facts.torchrun_options import NEWEST, version_of
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.regular_file import read_regular, special_file, text_of_regular

__all__ = ["LocalFiles", "collect_launch"]

CONFIG_CHARACTERS = 65536
SCRIPT_BYTES = 1 << 20
STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Files that are open already: standard input, and what `<(…)` becomes."""


class LocalFiles:
    """The files of this machine that launch lines name; each script is examined once."""

    def __init__(self) -> None:
        self._scripts: dict[str, StartedScript] = {}

    def script(self, path: str) -> StartedScript | None:
        """The training script at `path`, examined for what matters to a launch line."""
        if path not in self._scripts:
            self._scripts[path] = _script(posixpath.normpath(path))
        return self._scripts[path]

    def text(self, path: str) -> str | None:
        """The beginning of a text file, None if it cannot be read."""
        try:
            return text_of_regular(path, CONFIG_CHARACTERS)
        except (OSError, ValueError):
            return None

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at `path`."""
        return os.path.isdir(path)


def _script(path: str) -> StartedScript:
    """Examine the script at `path` without running it."""
    if not os.path.isfile(path):
        exists = os.path.isfile(os.path.join(path, "__main__.py"))
        if path.startswith(STREAMS):
            return StartedScript(path)  # `python <(…)`: an open pipe, which Python reads
        return StartedScript(path, exists=exists, kind=None if exists else special_file(path), similar=_similar(path))
    script = StartedScript(path, exists=True, is_executable=os.access(path, os.X_OK))
    try:
        head = read_regular(path, SCRIPT_BYTES)
    except OSError:
        return script
    shebang = head.startswith(b"#!")
    script = replace(script, has_shebang=shebang)
    if not path.endswith(".py") and not (shebang and b"python" in head.split(b"\n", 1)[0]):
        return replace(script, is_python=False if shebang or b"\0" in head[:4096] else None)
    from ddpdoctor.scripts.launched_script import described  # not imported for lines without a script

    return described(script, head.decode("utf-8", "replace"))


def _similar(path: str) -> str | None:
    """A script in the same folder with a name similar to the missing one."""
    try:
        names = {name[:-3]: name for name in os.listdir(os.path.dirname(path) or ".") if name.endswith(".py")}
    except OSError:
        return None
    import difflib

    close = difflib.get_close_matches(os.path.splitext(os.path.basename(path))[0], names, n=1, cutoff=0.75)
    return names[close[0]] if close else None


def collect_launch(
    machine: Machine,
    argv: Sequence[str] | None = None,
    nodes: Sequence[str] = (),
    *,
    torch: str | None = None,
    cwd: str | None = None,
) -> Launch:
    """The launch lines of one command.

    Args:
        argv: the words after `--`; one word with blanks in it is a whole line.
        nodes: shell text, one line per node.
        torch: the version from `--torch`; else the installed one, else the newest known one.
        cwd: where the line would be started.
    """
    version, origin, python = torch_of(machine, torch)
    if not argv and not nodes:
        return Launch(torch=version, torch_from=origin, python=python)
    from ddpdoctor.launch.line import line_of_argv, line_of_text  # not imported for a script or a job file alone

    known = version_of(version) or NEWEST
    folder = cwd or os.getcwd()
    files = LocalFiles()
    lines = []
    if argv:
        lines.append(line_of_argv(argv, machine.environ, known, folder, files))
    for index, text in enumerate(nodes):
        lines.append(line_of_text(text, machine.environ, known, folder, node=index, files=files))
    return Launch(lines=tuple(lines), torch=version, torch_from=origin, python=python)
