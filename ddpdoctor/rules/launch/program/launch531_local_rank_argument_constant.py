"""LAUNCH531: every process of a launcher is given the same --local_rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, remove

_OPTION = re.compile(r"--local[_-]rank(?:=(?P<value>\d{1,3}))?")


@cause("LAUNCH531", "local-rank-argument-constant", Severity.ERROR)
def local_rank_argument_constant(launch: Launch) -> Iterator[Finding]:
    """The script's arguments contain a constant --local_rank, so all processes of a node use one GPU.

    ## Why it matters
    torchrun gives the same arguments to every process. With `--local_rank 0` all of them select GPU 0: NCCL fails with
    `Duplicate GPU detected`, or the GPU runs out of memory.

    ## Fix
    Remove the argument, and read `LOCAL_RANK` from the environment.

    ## Example
        ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000

        # before
        torchrun --standalone --nproc-per-node=2 train.py --local_rank 0

        # after
        torchrun --standalone --nproc-per-node=2 train.py
    """
    for line, layer, plan in agents(launch):
        script = line.script
        if plan.nproc == 1 or layer.given("no_python") is not None:
            continue
        if script is not None and script.exists and not (script.local_rank and script.local_rank_used):
            continue
        words = layer.reading.arguments
        for at, word in enumerate(words):
            match = _OPTION.fullmatch(word.text)
            if match is None or not (match["value"] or (words[at + 1 :] and words[at + 1].text.isdigit())):
                continue
            both = [word] if match["value"] else [word, words[at + 1]]
            shown = " ".join(each.text for each in both)
            edits: list[SpanEdit] = list(remove(line, *both))
            severity = None if script is not None and script.exists else Severity.WARNING
            text = f"every process of the node gets {shown}"
            yield point(launch, line, word, text, "no --local_rank", edits, label="remove it", severity=severity)
            break
