"""The `#SBATCH` lines of a batch script, as the options of an `sbatch` command."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.shell.words import simple_commands

__all__ = ["batch_layer"]

_COMMENT = re.compile(r"\s#.*$")


def batch_layer(text: str, version: Version) -> Layer | None:
    """The options that sbatch reads from a script: every `#SBATCH` line before the first command. None without one.

    sbatch expands no variables, and the last of several lines with the same option is used.
    """
    options = []
    for row in text.splitlines():
        if row.startswith("#SBATCH"):
            option = _COMMENT.sub("", row[len("#SBATCH") :]).strip().replace("$", "\\$")
            if option == "hetjob":
                return None  # a heterogeneous job: it is unknown which part runs a line
            options.append(option)
        elif row.strip() and not row.lstrip().startswith("#"):
            break
    if not options:
        return None
    commands = simple_commands("sbatch " + " ".join(options).replace("\n", " "))
    layers = parse_layers(commands[0].words, version)
    return layers[0] if layers else None
