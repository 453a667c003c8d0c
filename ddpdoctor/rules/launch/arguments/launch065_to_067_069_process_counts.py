"""LAUNCH065 to 067, 069: what the workers get and where their output goes."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import UNKNOWN, plain
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.arguments.launch020_021_042_043_047_option_values import bad, told
from ddpdoctor.rules.launch.pointing import after, agents, point, remove, replace_word, shown, spelled

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

CHANGED = re.compile(r"(?<!\$)(\${2,3}(?!\$|local_rank|\{local_rank)|\$local_rank\b|\$\{local_rank\})")
"""What torchrun changes: two or three dollars (four are an escaped pair), and the local rank's name."""
REDIRECTS = re.compile(r"[0123]|(\d:[0123],)*\d:[0123]")


@cause("LAUNCH065", "numa-binding-without-gpu", Severity.ERROR)
def numa_binding_without_gpu(launch: Launch, gpu: Gpu) -> Iterator[Finding]:
    """--numa-binding is given on a node where torch sees no GPU.

    ## Why it matters
    torchrun asks CUDA which CPUs are near each GPU and ends with `AssertionError: Torch not compiled with CUDA enabled`.

    ## Fix
    Drop --numa-binding.
    """
    for line, layer, _ in agents(launch):
        given = layer.given("numa_binding")
        if given is not None and not gpu.devices:
            own = () if given.is_joined else (given.value_word,)
            text = f"{shown(given.word)} needs GPUs, this node has none: expected no such option"
            yield point(launch, line, given.word, text, "no such option", remove(line, given.word, *own))


@cause(
    "LAUNCH066",
    "log-option-invalid",
    Severity.ERROR,
    signatures=(r"does not match: <\^\[0123\]", r"local_ranks_filter must be a comma-separated list"),
)
def log_option_invalid(launch: Launch) -> Iterator[Finding]:
    """--tee, --redirects or --local-ranks-filter has a value that torchrun cannot read.

    ## Why it matters
    `ValueError: 5 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>`, or `--local_ranks_filter must be a
    comma-separated list of integers`, from a traceback that does not name the option.

    ## Fix
    --tee and --redirects take 0 (none), 1 (stdout), 2 (stderr), 3 (both), or pairs such as 0:1,1:3 for single local ranks.
    """
    for line, layer, plan in agents(launch):
        for dest in ("redirects", "tee"):
            setting = plan.settings[dest]
            if setting.value is not None and not REDIRECTS.fullmatch(setting.value):
                text = told(setting, dest, f"is {setting.value!r:.30}: expected 0 to 3, or pairs such as 0:1,1:3")
                yield bad(launch, line, layer, dest, setting, text, "0 to 3", "3")
        ranks = plan.settings.get("local_ranks_filter")
        if ranks is not None and ranks.value and not re.fullmatch(r"\s*[+-]?\d+\s*(,\s*[+-]?\d+\s*)*", ranks.value):
            text = told(
                ranks, "local_ranks_filter", f"is {ranks.value!r:.30}: expected numbers with commas, such as 0,1"
            )
            yield bad(launch, line, layer, "local_ranks_filter", ranks, text, "0,1", "0")


@cause("LAUNCH067", "worker-output-redirected", Severity.WARNING)
def worker_output_redirected(launch: Launch) -> Iterator[Finding]:
    """The workers' output goes to files in a temporary folder only.

    ## Why it matters
    --redirects takes the output from the console; without --log-dir the files are somewhere below /tmp/torchelastic_*, on each
    node its own. The console stays empty, also when a worker dies.

    ## Fix
    Add --log-dir, or use --tee, which keeps the console.
    """
    for line, layer, plan in agents(launch):
        given = layer.given("redirects")
        value = plan.settings["redirects"].value
        if given is None or value is None or not REDIRECTS.fullmatch(value) or not re.search(r"[123](,|$)", value):
            continue
        if plan.given("log_dir") or plan.given("tee"):
            continue
        option = f"{spelled(layer, 'log_dir', launch.version)}=logs"
        text = f"{shown(given.word)} sends the workers' output to a temporary folder only: expected --log-dir or --tee"
        yield point(launch, line, given.word, text, "--log-dir or --tee", [after(given.value_word, option)])


@cause("LAUNCH069", "dollar-in-script-args", Severity.WARNING)
def dollar_in_script_args(launch: Launch) -> Iterator[Finding]:
    """torchrun changes a $ in the script's arguments.

    ## Why it matters
    Every argument is a string.Template: `$local_rank` and `${local_rank}` become the local rank, `$$` becomes `$`. A password or
    a pattern arrives changed and nothing says so.

    ## Fix
    Write $$ for every $, or pass the value in a file.

    ## Source
    torch/distributed/elastic/utils/api.py: `macros.substitute`.
    """
    for line, layer, _ in agents(launch):
        for word in layer.reading.arguments:
            text = word.text
            hit = CHANGED.search(text)
            if UNKNOWN in text or hit is None:
                continue
            arrives = string.Template(text).safe_substitute(local_rank="0")
            yield point(
                launch,
                line,
                word,
                f"{plain(text):.60} reaches the script as {arrives:.60}: expected $$ for each $",
                text.replace("$", "$$"),
                [replace_word(word, text.replace("$", "$$"))],
                severity=None if hit[0].startswith("$$") else Severity.NOTE,
            )
