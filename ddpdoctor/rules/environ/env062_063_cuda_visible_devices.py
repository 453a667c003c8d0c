"""ENV062, ENV063: CUDA_VISIBLE_DEVICES hides all GPUs, or has an entry at which CUDA stops reading."""

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
    signatures=(r"No (?:CUDA|HIP) GPUs are available",),
)
def cuda_visible_devices_empty(
    environ: Environ, gpu: Gpu | None = None, launch: Launch | None = None
) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES is set and hides every GPU.

    ## Why it matters
    An empty value is not the same as an unset variable: CUDA shows no GPU, and torch fails with `No CUDA GPUs are
    available`.

    ## Fix
    Unset the variable, or list the GPUs that the job should use.

    ## Example

        RuntimeError: No CUDA GPUs are available

        # before
        export CUDA_VISIBLE_DEVICES=
        # after
        unset CUDA_VISIBLE_DEVICES

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
    # Without a GPU it hides nothing; -1 is the common way to hide them on purpose.
    softer = Severity.NOTE if not has_gpu and not asking else Severity.WARNING if not is_empty else None
    yield Finding(
        _headline(f"{VARIABLE}={value!r}", gpu, asking),
        evidence=(Evidence(f"environ.variables.{VARIABLE}", repr(value), "unset, or a list of GPUs"),),
        fix_command=f"unset {VARIABLE}",
        severity=softer,
    )


def _asks_for_gpus(line: LaunchLine) -> str:
    """The part of a launch line that needs a GPU, "" if none."""
    plan, script = line.plan, line.script
    if plan is not None and plan.settings["nproc_per_node"].value == "gpu":
        return "--nproc-per-node=gpu"
    return f"{script.path}, which uses nccl" if script is not None and script.backend == "nccl" else ""


def _headline(setting: str, gpu: Gpu | None, asking: str) -> str:
    if gpu is not None and gpu.devices:
        count = len(gpu.devices)
        return f"{setting} hides all {count} GPUs" if count > 1 else f"{setting} hides the only GPU"
    if asking:
        return f"{setting} hides every GPU from {asking}"
    return f"{setting} hides every GPU{' (there is none here)' if gpu is not None else ''}"


@cause("ENV063", "cuda-visible-devices-invalid", Severity.ERROR, also_in=("gpus",))
def cuda_visible_devices_invalid(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES has an entry that CUDA cannot use, and CUDA stops reading there.

    ## Why it matters
    CUDA silently stops at the first bad entry, a repeated entry empties the list, and of 0-7 CUDA reads only the 0.
    The high local ranks fail with `invalid device ordinal`.

    ## Fix
    List only indices or UUIDs that `nvidia-smi -L` shows here; in a container or a job the numbers start at 0
    again.

    ## Example

        RuntimeError: CUDA error: invalid device ordinal

        # before: CUDA sees GPU 0 only
        export CUDA_VISIBLE_DEVICES=0-7
        # after
        export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7

    ## Source
    CUDA programming guide, environment variables; torch/cuda/__init__.py: _device_count_nvml.
    """
    value = environ.get(VARIABLE)
    if value is None:
        return
    devices = gpu.need(gpu.devices or None, "devices")
    visibility = visible(environ.variables, gpu)
    several = joined(value)
    if several is None and (not visibility.dropped or _is_end_mark(visibility) or "MIG device" in visibility.why):
        return
    wrong = f"bad entry {visibility.stopped_at!r} ({visibility.why})"
    if several is not None:
        wrong = f"CUDA reads only the first number of {several.strip()[:40]!r}"
    ranks = environ.get("LOCAL_WORLD_SIZE") or ""
    is_enough = ranks.isdecimal() and 0 < int(ranks) <= visibility.count
    yield Finding(
        f"{VARIABLE}={value} shows {visibility.count} of {len(devices)} GPUs: {wrong}",
        evidence=(Evidence(f"environ.variables.{VARIABLE}", value, "entries that exist"),),
        severity=Severity.WARNING if is_enough else None,
    )


def _is_end_mark(visibility: Visibility) -> bool:
    """Whether it is a trailing comma or -1 that drops only itself, or an empty value of ENV062."""
    return (visibility.stopped_at or "").strip() in ("", "-1") and visibility.dropped == 1


@cuda_visible_devices_invalid.look
def cut_short(launch: Launch) -> Iterator[Finding]:
    """An entry of CUDA_VISIBLE_DEVICES that ends the list on every machine: repeated, or not an entry at all."""
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
        text = f"{CVD}={value} shows only {count} GPU{'s' * (count != 1)}: bad entry {entry!r} ({why})"
        enough = ranks is not None and ranks <= count
        severity = Severity.WARNING if enough else None
        expected, label = "entries that exist, each once", "CUDA stops reading here"
        found = point(launch, line, word, text, expected, edits, label=label, severity=severity)
        mark = line.places.get(CVD)
        if word is None and mark is not None:
            found = Finding(
                text,
                found.evidence,
                where=Where(file=line.file, line=mark.line, column=mark.column),
                severity=severity,
                label=label,
            )
        yield found


def _kept(value: str) -> str:
    entries = [entry.strip() for entry in value.split(",")]
    return ",".join(dict.fromkeys(e for e in entries if re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", e)))


NO_GPU = (r"No (?:CUDA|HIP) GPUs are available",)


EMPTY = re.compile(r"CUDA_VISIBLE_DEVICES ?(?:=|is set to) ?(?:['\"]{2}|-1\b|$)")


HIDDEN = "CUDA_VISIBLE_DEVICES is set and hides every GPU"


UNSEEN = (
    "Either CUDA_VISIBLE_DEVICES is empty or names no GPU of this node (ENV062), the job or the "
    "container has no GPU, or the driver does not work; `ddpdoctor gpus` on that node decides"
)


@cuda_visible_devices_empty.look
def no_gpu_seen(log: Log) -> Iterator[Finding]:
    """torch sees no GPU; the reason is certain only if the log shows the empty variable."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NO_GPU)
    if lines:
        is_hidden = any(EMPTY.search(line.text) for line in lines)
        title, undetermined = (HIDDEN, "") if is_hidden else ("torch sees no GPU", UNSEEN)
        yield finding_of(log, lines, title, undetermined, blames_speaker=True)
