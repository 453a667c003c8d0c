"""Gathers `launch`: the words after `--`, the `--node` lines, the torch that would read them, the script they name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ddpdoctor.collectors.launch_torch import torch_of
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.torchrun_options import NEWEST, version_of
from ddpdoctor.launch.line import line_of_argv, line_of_text
from ddpdoctor.system.machine import Machine

__all__ = ["collect_launch"]


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
    lines = []
    if argv:
        lines.append(line_of_argv(argv, machine.environ, known, folder))
    seen: dict[str, Line] = {}
    for index, text in enumerate(nodes):
        lines.append(line_of_text(text, machine.environ, known, folder, node=index, scripts=seen))
    return Launch(lines=tuple(lines), torch=version, torch_from=origin, python=python)
