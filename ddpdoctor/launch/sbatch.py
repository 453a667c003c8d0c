"""The `#SBATCH` lines of a batch script, as the options of an `sbatch` command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.shell.words import simple_commands

__all__ = ["batch_layer", "batch_layers", "batch_rows", "option_places"]

_COMMENT = re.compile(r"\s#.*$")
_OPTION = re.compile(r"(?<!\S)(--[\w-]+|-[A-Za-z])")


def batch_layer(text: str, version: Version) -> Layer | None:
    """The options that sbatch reads from a script: every `#SBATCH` line before the first command. None without one, and for
    a heterogeneous job, of which it is unknown which part runs a line.

    sbatch expands no variables, and the last of several lines with the same option is used.
    """
    layers = batch_layers(text, version)
    return layers[0] if len(layers) == 1 else None


def batch_layers(text: str, version: Version, given: str = "") -> tuple[Layer, ...]:
    """The options of each component of a batch job: lines `#SBATCH hetjob` stand between them. () without a line.

    Args:
        given: the options of the command line of sbatch, which take precedence over the lines.
    """
    parts: list[list[str]] = [[]]
    for _, option in batch_rows(text):
        if option in ("hetjob", "packjob"):
            parts.append([])
        else:
            parts[-1].append(option)
    if given:
        parts[0].append(given)
    layers = [_layer(options, version) for options in parts] if any(parts) else []
    return tuple(layer for layer in layers if layer is not None)


def option_places(text: str) -> dict[str, tuple[int, int]]:
    """Where each option of the `#SBATCH` lines stands, as start and end in the text, by its spelling; the last one wins."""
    found = {}
    for start, option in batch_rows(text):
        for match in _OPTION.finditer(option):
            stop = option.find(" ", match.end() + 1)
            found[match[1]] = (start + match.start(), start + (len(option) if stop < 0 else stop))
    return found


def batch_rows(text: str) -> Iterator[tuple[int, str]]:
    """The options of each line and where they begin."""
    at = 0
    for row in text.splitlines(keepends=True):
        if row.startswith("#SBATCH"):
            option = _COMMENT.sub("", row[len("#SBATCH") :].rstrip("\n")).strip()
            yield at + row.find(option, len("#SBATCH")), option
        elif row.strip() and not row.lstrip().startswith("#"):
            return
        at += len(row)


def _layer(options: Sequence[str], version: Version) -> Layer | None:
    words = " ".join(options).replace("$", "\\$").replace("\n", " ")
    commands = simple_commands("sbatch " + words)
    layers = parse_layers(commands[0].words, version)
    return layers[0] if layers else None
