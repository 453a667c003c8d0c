"""CUDA_VISIBLE_DEVICES against the GPUs that are here: all hidden, or a list that CUDA cuts short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.facts.visibility import Visibility, cut, joined, listed, visible
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity, Where
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import CVD
from ddpdoctor.rules.launch.pointing import point, replace_word

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log

VARIABLE = "CUDA_VISIBLE_DEVICES"


@cause(
    "ENV062",
    "cuda-visible-devices-empty",
    Severity.ERROR,
    candidates=("ENV062",),
    stage=CausalStage.DEATH,
    also_in=("gpus",),
    signatures=(r"No CUDA GPUs are available",),
)
def cuda_visible_devices_empty(
    environ: Environ, gpu: Gpu | None = None, launch: Launch | None = None
) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES is set and hides every GPU.

    ## Why it matters
    An empty value is not an unset variable: CUDA shows no GPU, and torch says "No CUDA GPUs are available".

    ## Fix
    Unset the variable, or list the GPUs that the job should use.

    ## Source
    CUDA programming guide, environment variables; torch/cuda/__init__.py: _parse_visible_devices.
    """
    value = environ.get(VARIABLE)
    is_empty = value is not None and not value.strip()
    has_gpu = gpu is not None and bool(gpu.devices)
    if not is_empty and not (value is not None and value.strip() == "-1" and has_gpu):
        return
    asking = next(
        (asked for line in (launch.lines if launch is not None else ()) if (asked := _asks_for_gpus(line))), ""
    )
    # Without a GPU it hides nothing; -1 is how people hide them on purpose.
    softer = Severity.NOTE if not has_gpu and not asking else Severity.WARNING if not is_empty else None
    yield Finding(
        _told(f"{VARIABLE}={value!r}", gpu, asking),
        evidence=(Evidence(f"environ.variables.{VARIABLE}", repr(value), "unset, or a list of GPUs"),),
        fix_command=f"unset {VARIABLE}",
        severity=softer,
    )


def _asks_for_gpus(line: LaunchLine) -> str:
    """What of a launch line cannot do without a GPU."""
    plan, script = line.plan, line.script
    if plan is not None and plan.settings["nproc_per_node"].value == "gpu":
        return "--nproc-per-node=gpu"
    return f"{script.path}, which asks for nccl" if script is not None and script.backend == "nccl" else ""


def _told(seen: str, gpu: Gpu | None, asking: str) -> str:
    if gpu is not None and gpu.devices:
        return f"{seen} hides all of {len(gpu.devices)} GPUs; expected it to be unset or to list GPUs"
    if asking:
        return f"{seen} hides every GPU from {asking}; expected it to be unset or to list GPUs"
    there = ", and there is none here" if gpu is not None else ""
    return f"{seen} hides every GPU{there}; expected it to be unset"


@cause("ENV063", "cuda-visible-devices-invalid", Severity.ERROR, also_in=("gpus",))
def cuda_visible_devices_invalid(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES has an entry that CUDA cannot use, so that the list is cut there.

    ## Why it matters
    CUDA stops at the first bad entry without a word, a repeated one empties the list, and of 0-7 it reads the 0 alone: the
    high local ranks fail with "invalid device ordinal".

    ## Fix
    List only indices or UUIDs that nvidia-smi -L shows here; inside a container or a job the numbers begin at 0 again.

    ## Source
    CUDA programming guide, environment variables; torch/cuda/__init__.py: _device_count_nvml.
    """
    value = environ.get(VARIABLE)
    if value is None:
        return
    devices = gpu.need(gpu.devices or None, "devices")
    seen = visible(environ.variables, gpu)
    several = joined(value)
    if several is None and (not seen.dropped or _is_end_mark(seen) or "MIG device" in seen.why):
        return
    wrong = f"is cut at {seen.stopped_at!r} ({seen.why})"
    if several is not None:
        wrong = f"has the entry {several.strip()[:40]!r}, of which CUDA reads the first number only"
    ranks = environ.get("LOCAL_WORLD_SIZE") or ""
    is_enough = ranks.isdecimal() and 0 < int(ranks) <= seen.count
    yield Finding(
        f"{VARIABLE}={value} {wrong}: CUDA sees {seen.count} of {len(devices)} GPUs; "
        "expected every entry to name one GPU that is here",
        evidence=(Evidence(f"environ.variables.{VARIABLE}", value, "entries that exist"),),
        severity=Severity.WARNING if is_enough else None,
    )


def _is_end_mark(seen: Visibility) -> bool:
    """A trailing comma or -1 that drops nothing but itself, and the empty values of ENV062."""
    return (seen.stopped_at or "").strip() in ("", "-1") and seen.dropped == 1


@cuda_visible_devices_invalid.look
def cut_short(launch: Launch) -> Iterator[Finding]:
    """An entry of CUDA_VISIBLE_DEVICES that ends the list on every machine: repeated, or no entry at all."""
    for line in launch.lines:
        value = line.environ.variables.get(CVD, "")
        wrong = cut(value) if is_known(value) else None
        if wrong is None or line.program is None:
            continue
        entry, why, _ = wrong
        count, ranks = listed(value) or 0, ranks_here(line)
        word = next((v.word for v in reversed(line.program.variables) if v.name == CVD), None)
        kept = _kept(value)
        edits = [replace_word(word, f"{CVD}={kept}")] if word is not None and kept and word.assignment else None
        text = f"{CVD}={value} is cut at {entry!r} ({why}): CUDA sees {count} GPU{'s' * (count != 1)}; expected every entry once"
        enough = ranks is not None and ranks <= count
        severity = Severity.WARNING if enough else None
        found = point(launch, line, word, text, "entries that exist, each once", edits, severity=severity)
        mark = line.places.get(CVD)
        if word is None and mark is not None:
            found = Finding(
                text, found.evidence, where=Where(file=line.file, line=mark.line, column=mark.column), severity=severity
            )
        yield found


def _kept(value: str) -> str:
    entries = [entry.strip() for entry in value.split(",")]
    return ",".join(dict.fromkeys(e for e in entries if re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", e)))


NO_GPU = (r"No CUDA GPUs are available",)


EMPTY = re.compile(r"CUDA_VISIBLE_DEVICES ?(?:=|is set to) ?(?:['\"]{2}|-1\b|$)")


HIDDEN = "CUDA_VISIBLE_DEVICES is set and hides every GPU"


UNSEEN = (
    "Undetermined: CUDA_VISIBLE_DEVICES is empty or names none of this node (ENV062), the job or the "
    "container was given no GPU, or the driver does not work; `ddpdoctor gpus` on that node decides"
)


@cuda_visible_devices_empty.look
def no_gpu_seen(log: Log) -> Iterator[Finding]:
    """torch sees no GPU: only an empty variable that is told is known to be the reason."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NO_GPU)
    if lines:
        is_hidden = any(EMPTY.search(each.text) for each in lines)
        title, undetermined = (HIDDEN, "") if is_hidden else ("torch sees no GPU", UNSEEN)
        yield finding_of(log, lines, title, undetermined, blames_speaker=True)
