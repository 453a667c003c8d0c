"""Gathers `launch`: the words after `--`, the `--node` lines, the torch that would read them, the script they name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ddpdoctor.collectors.launch_script import look
from ddpdoctor.collectors.launch_torch import torch_of
from ddpdoctor.facts.launch.record import Launch, Script
from ddpdoctor.facts.torchrun_options import NEWEST, version_of
from ddpdoctor.launch.line import line_of_argv, line_of_text
from ddpdoctor.system.machine import Machine

__all__ = ["LocalFiles", "collect_launch"]

CONFIG_CHARACTERS = 65536


class LocalFiles:
    """Answers about the files of this machine that launch lines name, each file looked at once."""

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}

    def script(self, path: str) -> Script | None:
        """The training script at `path`, looked at for what concerns a launch line."""
        if path not in self._scripts:
            self._scripts[path] = look(path)
        return self._scripts[path]

    def text(self, path: str) -> str | None:
        """The beginning of a text file, None where it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(CONFIG_CHARACTERS)
        except (OSError, ValueError):
            return None

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at `path`."""
        return os.path.isdir(path)


def collect_launch(
    machine: Machine,
    argv: Sequence[str] | None = None,
    nodes: Iterable[str] = (),
    *,
    torch: str | None = None,
    cwd: str | None = None,
) -> Launch:
    """The launch lines of one command.

    Args:
        argv: the words after `--`; one word with blanks in it is a whole line.
        nodes: shell text, one line a node.
        torch: the version that `--torch` gives; else the installed one, else the newest that is known.
        cwd: where the line would be started.
    """
    version, origin, python = torch_of(machine, torch)
    known = version_of(version) or NEWEST
    folder = cwd or os.getcwd()
    files = LocalFiles()
    lines = []
    if argv:
        lines.append(line_of_argv(argv, machine.environ, known, folder, files))
    for index, text in enumerate(nodes):
        lines.append(line_of_text(text, machine.environ, known, folder, node=index, files=files))
    return Launch(lines=tuple(lines), torch=version, torch_from=origin, python=python)
