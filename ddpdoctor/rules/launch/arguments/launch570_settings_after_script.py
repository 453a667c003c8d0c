"""LAUNCH570: environment variables that are written after the script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import before, point, remove

_SETTING = re.compile(
    r"(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|(?:TORCH_)?NCCL_[A-Z0-9_]+|GLOO_SOCKET_IFNAME|(?:OMP|MKL)_NUM_THREADS"
    r"|TORCH_DISTRIBUTED_DEBUG|PYTORCH_CUDA_ALLOC_CONF|TOKENIZERS_PARALLELISM|MASTER_ADDR|MASTER_PORT|WORLD_SIZE)=.*",
    re.DOTALL,
)
"""Names that only environment variables have; the names of Hydra's and yacs' options can be in capitals, too."""


@cause("LAUNCH570", "settings-after-script", Severity.ERROR)
def settings_after_script(launch: Launch) -> Iterator[Finding]:
    """Environment variables are written after the script and passed to it as arguments.

    ## Why it matters
    The shell takes `NAME=value` for a variable only before the command; after the script it is an argument, and the
    ranks use other GPUs or interfaces. A strict parser fails with `unrecognized arguments: CUDA_VISIBLE_DEVICES=4,5`.

    ## Fix
    Put the variables before the launcher.

    ## Example
        error[LAUNCH570]: CUDA_VISIBLE_DEVICES after the script is an argument

        # before
        torchrun --nproc-per-node=2 train.py CUDA_VISIBLE_DEVICES=4,5

        # after
        CUDA_VISIBLE_DEVICES=4,5 torchrun --nproc-per-node=2 train.py

    ## Source
    POSIX.1-2024, Shell Command Language, 2.9.1 "Simple Commands".
    """
    for line in launch.lines:
        words = list(_misplaced(line))
        if not words:
            continue
        assert line.program is not None
        name = words[0].text.partition("=")[0]
        text = f"{name:.30}{', … after the script are arguments' if len(words) > 1 else ' after the script is an argument'}"
        edits = None
        if all(word.is_literal for word in words):
            first = line.argv[0] if line.argv else line.program.program
            moved = " ".join(line.source[word.start : word.end] for word in words)
            edits = [before(first, moved), *remove(line, *words)]
        yield point(launch, line, words[0], text, "before the launcher", edits, label="move before the launcher")


def _misplaced(line: LaunchLine) -> Iterator[Word]:
    """The settings among the arguments of a Python script, but for values of an option such as `--env`."""
    layer = line.program
    script = None if layer is None else layer.reading.script
    if layer is None or layer.typos or script is None or not script.text.endswith(".py"):
        return
    is_value = False
    for word in layer.reading.arguments:
        if _SETTING.fullmatch(word.text):
            if not is_value:
                yield word
        else:
            is_value = word.text.startswith("-") and "=" not in word.text
