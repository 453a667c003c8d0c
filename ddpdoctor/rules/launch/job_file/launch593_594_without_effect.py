"""LAUNCH593, LAUNCH594: GPUs that a container does not get, and variables that no program gets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.refused import RefusedKind
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.launch.submitted import at_mark

__all__: list[str] = []

_OF_GPUS = re.compile(r"nvcr\.io|cuda|nvidia|--nv\b", re.IGNORECASE)
_DEVICES = ("nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "habana")


@cause("LAUNCH593", "container-without-gpus", Severity.WARNING)
def container_without_gpus(launch: Launch) -> Iterator[Finding]:
    """A container for GPUs is started without an option that gives it GPUs.

    ## Why it matters
    The container sees no GPU unless the machine makes `nvidia` the default runtime. torch fails with
    `No CUDA GPUs are available`, or NCCL with `no GPUs found`.

    ## Fix
    Add `--gpus all` (docker), `--nv` (apptainer) or devices (Compose).

    ## Example
        warning[LAUNCH593]: docker gives the container no GPU: --gpus all is missing

        # before
        docker run --ipc=host nvcr.io/nvidia/pytorch:24.08-py3 torchrun --standalone --nproc_per_node=4 train.py

        # after
        docker run --gpus all --ipc=host nvcr.io/nvidia/pytorch:24.08-py3 torchrun --standalone --nproc_per_node=4 train.py

    ## Source
    docs.docker.com, "Access an NVIDIA GPU"; apptainer.org, "GPU Support"; the Compose specification, "deploy: devices".
    """
    for line in launch.lines:
        for layer in line.layers:
            if layer.launcher is LauncherKind.CONTAINER and _lacks_gpus(layer, line):
                option = "--gpus all" if layer.name in ("docker", "podman", "nerdctl") else "--nv"
                text = f"{layer.name} gives the container no GPU: {option} is missing"
                yield point(launch, line, layer.program, text, option, None, label=f"add {option}")


@container_without_gpus.look
def service_without_gpus(submission: Submission) -> Iterator[Finding]:
    """A service of a Compose file that reserves no GPU."""
    for each in submission.refused:
        if each.kind is RefusedKind.NO_GPU:
            text = "the service starts ranks for GPUs and reserves no GPU"
            yield at_mark(
                submission, each.at, text, seen="no GPU", expected=each.expected, label="add a GPU reservation"
            )


def _is_granted(line: LaunchLine) -> bool:
    """Whether the batch script or srun asks for GPUs."""
    given = [each for layer in (*line.layers, *((line.batch,) if line.batch else ())) for each in layer.reading.given]
    return any(
        each.flag.startswith("--gpus") or (each.flag == "--gres" and "gpu" in (each.value or "")) for each in given
    )


def _lacks_gpus(layer: Layer, line: LaunchLine) -> bool:
    own = " ".join(word.text for word in layer.own)
    values = {given.value_word.start for given in layer.reading.given}
    hidden = [word for word in layer.own[:-1] if word.text == UNKNOWN and word.start not in values]
    if hidden or line.agent is None:
        return False
    environ = line.environ.variables
    is_meant = (
        _is_granted(line)
        or (line.script is not None and line.script.backend == "nccl")
        or _OF_GPUS.search(own) is not None
    )
    if layer.name in ("docker", "podman", "nerdctl"):
        options = (
            "--gpus",
            "--gpu",
            "--runtime",
            "--privileged",
            "exec",
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
        )
        return is_meant and not any(each in own for each in options) and not _has_device(own)
    if layer.name in ("singularity", "apptainer"):
        names = (
            "SINGULARITY_NV",
            "APPTAINER_NV",
            "SINGULARITY_NVCCLI",
            "APPTAINER_NVCCLI",
            "SINGULARITY_ROCM",
            "APPTAINER_ROCM",
        )
        is_on = any(name in environ for name in names) or re.search(r"(?<!\S)--(?:nv|nvccli|rocm|intel-hpu)(?!\S)", own)
        return is_meant and not is_on and "instance://" not in own
    return False


def _has_device(own: str) -> bool:
    return "--device" in own and any(name in own for name in _DEVICES)


@cause("LAUNCH594", "variable-not-exported", Severity.ERROR)
def variable_not_exported(submission: Submission) -> Iterator[Finding]:
    """A shell sets a variable that programs read, but does not export it.

    ## Why it matters
    Without export the variable exists in the shell alone. torch, NCCL and CUDA use their defaults: the ranks use the
    wrong GPUs or interface, and nothing is printed.

    ## Fix
    Write `export` before the assignment.

    ## Example
        error[LAUNCH594]: CUDA_VISIBLE_DEVICES is not exported: no program gets it

        # before
        CUDA_VISIBLE_DEVICES=4,5
        torchrun --standalone --nproc_per_node=2 train.py

        # after
        export CUDA_VISIBLE_DEVICES=4,5
        torchrun --standalone --nproc_per_node=2 train.py

    ## Source
    bash(1), "ENVIRONMENT".
    """
    for each in submission.refused:
        if each.kind is RefusedKind.UNREAD and submission.steps:
            yield at_mark(submission, each.at, each.says, seen=each.name, expected=each.expected, label="add export")
