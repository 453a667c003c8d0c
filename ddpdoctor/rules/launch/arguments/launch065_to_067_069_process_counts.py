"""LAUNCH065 to 067, 069: CPU binding, output and arguments of the workers."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import UNKNOWN, plain
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.late_pattern import pattern
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.launch020_021_042_043_047_option_values import bad, source
from ddpdoctor.rules.launch.pointing import after, agents, option_text, point, remove, replace_word, spelled

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

CHANGED = pattern(r"(?<!\$)(\${2,3}(?!\$|local_rank|\{local_rank)|\$local_rank\b|\$\{local_rank\})")
"""What torchrun changes: two or three dollar signs (four are an escaped pair), and the name of the local rank."""
REDIRECTS = pattern(r"[0123]|(\d:[0123],)*\d:[0123]")


@cause("LAUNCH065", "numa-binding-without-gpu", Severity.ERROR)
def numa_binding_without_gpu(launch: Launch, gpu: Gpu) -> Iterator[Finding]:
    """--numa-binding is given on a node where torch sees no GPU.

    ## Why it matters
    torchrun asks CUDA which CPUs are near each GPU, and fails with `AssertionError: Torch not compiled with CUDA
    enabled`.

    ## Fix
    Remove `--numa-binding`.

    ## Example
        AssertionError: Torch not compiled with CUDA enabled

        # before
        torchrun --numa-binding=node --nproc-per-node=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, _ in agents(launch):
        given = layer.given("numa_binding")
        if given is not None and not gpu.devices:
            own = () if given.is_joined else (given.value_word,)
            text = f"{option_text(given)} on a node without a GPU"
            edits = remove(line, given.word, *own)
            yield point(launch, line, given.word, text, "no such option", edits, label="asks CUDA for the GPUs")


@cause(
    "LAUNCH066",
    "log-option-invalid",
    Severity.ERROR,
    signatures=(r"does not match: <\^\[0123\]", r"local_ranks_filter must be a comma-separated list"),
)
def log_option_invalid(launch: Launch) -> Iterator[Finding]:
    r"""--tee, --redirects or --local-ranks-filter has a value that torchrun cannot read.

    ## Why it matters
    The traceback does not name the option: `ValueError: 5 does not match: <^[0123]$> or
    <^(\d:[0123],)*(\d:[0123])$>`, or `--local_ranks_filter must be a comma-separated list of integers`.

    ## Fix
    Use 0 (none), 1 (stdout), 2 (stderr) or 3 (both).

    For single local ranks use pairs such as `0:1,1:3`. --local-ranks-filter accepts numbers separated by commas.

    ## Example
        ValueError: 5 does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>

        # before
        torchrun --nproc-per-node=2 --tee=5 train.py

        # after
        torchrun --nproc-per-node=2 --tee=3 train.py
    """
    for line, layer, plan in agents(launch):
        for dest in ("redirects", "tee"):
            setting = plan.settings[dest]
            if setting.value is not None and not REDIRECTS.fullmatch(setting.value):
                text = f"{source(setting, dest)} does not accept {setting.value!r:.30}"
                yield bad(launch, line, layer, dest, setting, text, "0 to 3", "3", "use 0 to 3, or LOCAL_RANK:0-3")
        ranks = plan.settings.get("local_ranks_filter")
        if ranks is not None and ranks.value and not re.fullmatch(r"\s*[+-]?\d+\s*(,\s*[+-]?\d+\s*)*", ranks.value):
            text = f"{source(ranks, 'local_ranks_filter')} does not accept {ranks.value!r:.30}"
            yield bad(launch, line, layer, "local_ranks_filter", ranks, text, "0,1", "0", "use numbers, such as 0,1")


@cause("LAUNCH067", "worker-output-redirected", Severity.WARNING)
def worker_output_redirected(launch: Launch) -> Iterator[Finding]:
    """The output of the workers goes only to files in a temporary folder.

    ## Why it matters
    --redirects takes the output off the console; without --log-dir the files are under /tmp/torchelastic_* on each
    node. The console stays empty, even if a worker fails.

    ## Fix
    Add `--log-dir`, or use `--tee`, which keeps the console output.

    ## Example
        warning[LAUNCH067]: --redirects=3 writes the output to a temporary folder only

        # before
        torchrun --nproc-per-node=2 --redirects=3 train.py

        # after
        torchrun --nproc-per-node=2 --redirects=3 --log-dir=logs train.py
    """
    for line, layer, plan in agents(launch):
        given = layer.given("redirects")
        value = plan.settings["redirects"].value
        if given is None or value is None or not REDIRECTS.fullmatch(value) or not re.search(r"[123](,|$)", value):
            continue
        if plan.given("log_dir") or plan.given("tee"):
            continue
        option = f"{spelled(layer, 'log_dir', launch.version)}=logs"
        text = f"{option_text(given):.24} writes the output to a temporary folder only"
        edits = [after(given.value_word, option)]
        yield point(launch, line, given.word, text, "--log-dir or --tee", edits, label="add --log-dir, or use --tee")


@cause("LAUNCH069", "dollar-in-script-args", Severity.WARNING)
def dollar_in_script_args(launch: Launch) -> Iterator[Finding]:
    """torchrun changes a $ in the arguments of the script.

    ## Why it matters
    Every argument is a string.Template: `$local_rank` and `${local_rank}` become the local rank, and `$$` becomes
    `$`. A password or a pattern is changed without a message.

    ## Fix
    Write `$$` for every `$`, or pass the value in a file.

    ## Example
        warning[LAUNCH069]: torchrun changes --password=a$$b to --password=a$b

        # before
        torchrun train.py '--password=a$$b'

        # after
        torchrun train.py '--password=a$$$$b'

    ## Source
    torch/distributed/elastic/utils/api.py: `macros.substitute`.
    """
    for line, layer, _ in agents(launch):
        for word in layer.reading.arguments:
            text = word.text
            hit = CHANGED.search(text)
            if UNKNOWN in text or hit is None:
                continue
            changed = string.Template(text).safe_substitute(local_rank="0")
            yield point(
                launch,
                line,
                word,
                f"torchrun changes {plain(text):.60} to {changed:.60}",
                text.replace("$", "$$"),
                [replace_word(word, text.replace("$", "$$"))],
                label="write $$ for each $",
                severity=None if hit[0].startswith("$$") else Severity.NOTE,
            )
