"""ENV060, ENV061, ENV064, ENV065: which GPUs, libraries, and servers CUDA finds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word
from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.visibility import joined, listed, visible
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.task_counts import option, tasks_per_node
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import CVD, about
from ddpdoctor.rules.launch.pointing import after, point, replace_word, revalue, shown
from ddpdoctor.rules.launch.submitted import at_mark, option_mark

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.host import Host
    from ddpdoctor.facts.log import Log

__all__ = [
    "cuda_device_order_ambiguous",
    "cuda_mps_daemon_absent",
    "nvidia_driver_capabilities_missing",
    "one_gpu_visible_per_rank",
]

MPS = "CUDA_MPS_PIPE_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@cause(
    "ENV060",
    "cuda-mps-daemon-absent",
    Severity.ERROR,
    also_in=("gpus",),
    signatures=(r"cudaErrorMpsConnectionFailed", r"MPS client failed to connect to the MPS control daemon"),
)
def cuda_mps_daemon_absent(environ: Environ) -> Iterator[Finding]:
    """CUDA_MPS_PIPE_DIRECTORY is set, but no MPS daemon is running.

    ## Why it matters
    The program was meant to share its GPU through the MPS server. Without one, CUDA fails or waits at its first
    call (`MPS client failed to connect to the MPS control daemon`), or runs without sharing.

    ## Fix
    Unset CUDA_MPS_PIPE_DIRECTORY, or run `nvidia-cuda-mps-control -d` on the node.

    ## Example

        RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server

        # before: no daemon is running
        export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
        # after
        unset CUDA_MPS_PIPE_DIRECTORY

    ## Source
    NVIDIA Multi-Process Service, environment variables.
    """
    control = environ.named(MPS)
    if control is not None and not control.exists and environ.get(MPS) != "/dev/null":  # the common way to avoid MPS
        wrong = "has no control pipe of an MPS daemon"
        yield about(environ, MPS, wrong, "unset, or a running daemon", severity=Severity.WARNING)
    elif control is not None and control.is_answered is False:
        wrong = "has the control pipe of an MPS daemon that is no longer running"
        yield about(environ, MPS, wrong, "unset, or a running daemon")


@cause("ENV061", "nvidia-driver-capabilities-missing", Severity.ERROR, also_in=("gpus",))
def nvidia_driver_capabilities_missing(
    environ: Environ, host: Host | None = None, gpu: Gpu | None = None
) -> Iterator[Finding]:
    """NVIDIA_DRIVER_CAPABILITIES lacks compute or utility.

    ## Why it matters
    The container gets the GPUs but not libcuda (compute) or libnvidia-ml (utility): torch finds no GPU, nvidia-smi
    is missing, and NCCL cannot use NVML.

    ## Fix
    Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.

    ## Example

        NVIDIA_DRIVER_CAPABILITIES=graphics lacks compute and utility

        # before
        docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=graphics IMAGE
        # after
        docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE

    ## Source
    NVIDIA container toolkit, driver capabilities.
    """
    name = "NVIDIA_DRIVER_CAPABILITIES"
    given = {word.strip() for word in (environ.get(name) or "all").split(",")}
    missing = [word for word in ("compute", "utility") if word not in given and "all" not in given]
    if gpu is not None and gpu.devices:
        missing = [word for word in missing if word != "utility"]  # NVML answers: libnvidia-ml is here
    outside = host is not None and not host.is_container
    if missing and not outside and (environ.get("NVIDIA_VISIBLE_DEVICES") or "all") not in ("void", "none"):
        right = ",".join(sorted({"compute", "utility"} | {w for w in given if w.isalnum()}))
        yield about(
            environ,
            name,
            f"lacks {' and '.join(missing)}",
            "compute and utility in it",
            command=f"export {name}={right}",
        )


@cause(
    "ENV064",
    "one-gpu-visible-per-rank",
    Severity.ERROR,
    candidates=("ENV064", "TOPO023"),
    also_in=("gpus",),
    signatures=(
        r"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found",
        r"transport/p2p\.cc:\d+ NCCL WARN Cuda failure (101 )?'invalid device ordinal'",
        r"Child failed to attach to shmseg",
        r"local_rank \d+ exceeds available GPUs in (?:CUDA|HIP)_VISIBLE_DEVICES",
    ),
)
def one_gpu_visible_per_rank(environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """Each rank sees only its own GPU, while the code may select cuda:LOCAL_RANK.

    ## Why it matters
    Each task sees one GPU, as number 0, so cuda:LOCAL_RANK is out of range on all but the first. Older NCCL cannot
    set up CUDA IPC: `nvmlDeviceGetHandleByPciBusId() failed: Not Found`.

    ## Fix
    Let every rank see all GPUs of its node, or select cuda:0 in every rank. Under Slurm, use --gpus-per-node instead
    of --gpus-per-task, or add --gpu-bind=none.

    ## Example

        RuntimeError: CUDA error: invalid device ordinal

        # before
        srun --ntasks-per-node=4 --gpus-per-task=1 python train.py
        # after
        srun --ntasks-per-node=4 --gpus-per-node=4 python train.py

    ## Source
    Slurm, --gpus-per-task; torch/cuda/__init__.py: set_device.
    """
    ranks, devices = environ.local_world_size, environ.get(VISIBLE)
    if environ.launcher in (None, TORCHRUN) or not ranks or ranks < 2:
        return
    if not devices or listed(devices) != 1 or joined(devices):
        return
    if gpu is not None and gpu.devices and not visible(environ.variables, gpu).count:
        return  # that GPU is not here: ENV063
    wrong = f"gives each of {ranks} ranks one GPU, which is cuda:0 in every rank"
    expected = f"{ranks} GPUs, unless the code selects cuda:0"
    yield about(environ, VISIBLE, wrong, expected, severity=Severity.NOTE, command="export SLURM_GPU_BIND=none")


@cause("ENV065", "cuda-device-order-ambiguous", Severity.WARNING, also_in=("gpus",))
def cuda_device_order_ambiguous(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """GPUs of different models are numbered by speed, not by their position on the PCI bus.

    ## Why it matters
    CUDA numbers the fastest GPU 0, nvidia-smi the first one on the bus. Index 0 then means two different GPUs, also
    in CUDA_VISIBLE_DEVICES.

    ## Fix
    Set CUDA_DEVICE_ORDER=PCI_BUS_ID.

    ## Example

        CUDA_VISIBLE_DEVICES=0 counts A100 and T4 by speed, but nvidia-smi by bus position

        # before
        export CUDA_VISIBLE_DEVICES=0
        # after
        export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0

    ## Source
    CUDA programming guide, CUDA_DEVICE_ORDER.
    """
    names = sorted({device.name for device in gpu.need(gpu.devices or None, "devices") if device.name})
    chosen = environ.get(VISIBLE)
    by_number = chosen is not None and chosen[:1].isdecimal()
    if len(names) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or (chosen and not by_number):
        return
    name = VISIBLE if by_number else "CUDA_DEVICE_ORDER"
    wrong = f"counts {' and '.join(names)[:120]} by speed, but nvidia-smi by bus position"
    if not by_number:
        wrong = f"CUDA numbers {' and '.join(names)[:120]} by speed"
    softer = None if by_number else Severity.NOTE
    command = "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    yield about(environ, name, wrong, "CUDA_DEVICE_ORDER=PCI_BUS_ID", severity=softer, command=command)


_ONE_EACH = re.compile(r"(per_task:1|single:1|map_gpu:|mask_gpu:)")


_LOCAL = re.compile(r"\$\{?(SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID|LOCAL_RANK)\b")


@one_gpu_visible_per_rank.look
def one_each(launch: Launch) -> Iterator[Finding]:
    """srun or a shell in the task gives each rank its own GPU, and the script selects the one with its local rank."""
    for line in launch.lines:
        program, script = line.program, line.script
        if program is None or script is None or not script.takes_gpu_of_local_rank or line.starter is not None:
            continue
        if line.environ.variables.get("LOCAL_RANK") == "0" or program.launcher is not LauncherKind.PYTHON:
            continue
        tasks, _ = tasks_per_node(line)
        if tasks == 1:
            continue
        own = next((v.word for v in reversed(program.variables) if v.name == CVD), None)
        text = f"gives each rank one GPU (cuda:0), but {script.path} selects cuda:LOCAL_RANK"
        if own is not None:
            if _LOCAL.search(own.raw):
                expected, label = "all GPUs, or cuda:0", "remove this, or select cuda:0"
                yield point(launch, line, own, f"{shown(own)} {text}", expected, None, label=label)
            continue
        word, binding = _bound(line)
        if binding:
            edits, label = _unbound(line, word, tasks), "use --gpus-per-node"
            yield point(launch, line, word, f"{binding} {text}", "--gpus-per-node", edits, label=label)


@one_gpu_visible_per_rank.look
def one_per_resource_set(submission: Submission) -> Iterator[Finding]:
    """jsrun or flux gives each task one GPU, and the script selects the one with its local rank."""
    for step in submission.steps:
        task = step.tasks[0]
        launcher, script = task.launcher, task.script
        if not step.is_certain or launcher is None or launcher.name not in ("jsrun", "flux") or task.gpus != 1:
            continue
        is_alone = launcher.tasks <= len(launcher.hosts) or CVD in task.set_at
        if is_alone or script is None or not script.takes_gpu_of_local_rank or task.line.starter is not None:
            continue
        text = f"{launcher.name} gives each rank one GPU (cuda:0), but {script.path:.30} selects cuda:LOCAL_RANK"
        mark = option_mark(submission, task, "-g", "--gpu_per_rs", "--gpus-per-task")
        fix = "Give all GPUs of the node to one resource set (`-r 1 -a 6 -g 6`), or select `cuda:0`."
        yield at_mark(submission, mark, text, seen="1 GPU", expected="all GPUs, or cuda:0", label="1 GPU each", fix=fix)
        return


def _bound(line: LaunchLine) -> tuple[Word | None, str]:
    """The option of srun or sbatch that gives each task its own GPU."""
    srun = line.layer(LauncherKind.SRUN)
    if srun is None:
        return None, ""
    bind = option(srun, ("--gpu-bind",)) or option(line.batch, ("--gpu-bind",))
    if bind is not None:
        if not _ONE_EACH.match(bind.value or ""):
            return None, ""
        return (bind.value_word if bind.value_word in line.argv else None), f"--gpu-bind={bind.value}"
    for layer in (srun, line.batch):
        given = option(layer, ("--gpus-per-task",))
        if given is not None and (given.value or "").rpartition(":")[2] == "1":
            return (given.value_word if given.value_word in line.argv else None), f"--gpus-per-task={given.value}"
    return None, ""


def _unbound(line: LaunchLine, word: Word | None, tasks: int | None) -> list[SpanEdit] | None:
    srun = line.layer(LauncherKind.SRUN)
    assert srun is not None
    given = option(srun, ("--gpus-per-task",))
    if given is None or tasks is None:
        return [after(srun.program, "--gpu-bind=none")] if word is None else None
    if given.is_joined:
        return [replace_word(given.word, f"--gpus-per-node={tasks}")]
    return [replace_word(given.word, "--gpus-per-node"), revalue(given, str(tasks))]


ISOLATED = (r"transport/p2p\.cc:\d+ NCCL WARN Cuda failure (101 )?'invalid device ordinal'",)


NOT_FOUND = (r"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found",)


STATED = (
    r"Child failed to attach to shmseg",
    r"local_rank \d+ exceeds available GPUs in (?:CUDA|HIP)_VISIBLE_DEVICES",
)


@one_gpu_visible_per_rank.look
def peers_gpu_unseen(log: Log) -> Iterator[Finding]:
    """One process's NCCL could not find the GPU of another."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, ISOLATED)
    if lines:
        title = "NCCL cannot open the GPU of a peer process"
        undetermined = (
            "Either CUDA_VISIBLE_DEVICES, srun's --gpus-per-task, or the container gives each rank one GPU (ENV064), "
            "or IMEX between the machines does not work (TOPO023); `ddpdoctor gpus` in each rank decides"
        )
        yield finding_of(log, lines, title, undetermined, blames_speaker=True)
    hidden = matching_lines(log, NOT_FOUND)
    if hidden:
        title = "NCCL does not find the GPU of a peer on the same machine"
        undetermined = (
            "Either several containers on one machine have different GPUs, or CUDA_VISIBLE_DEVICES or srun gives "
            "each task one GPU (ENV064); `nvidia-smi -L` in each rank decides"
        )
        yield replace(
            finding_of(log, hidden, title, undetermined, blames_speaker=True),
            candidates=(one_gpu_visible_per_rank.rule.code,),
            fix="Give every container all GPUs of the machine and select with CUDA_VISIBLE_DEVICES, or give each its own "
            "NCCL_HOSTID so that they communicate like two machines; under Slurm use --gpus-per-node instead of "
            "--gpus-per-task.",
        )
    stated = matching_lines(log, STATED)
    if stated:
        yield finding_of(log, stated, "each rank sees only its own GPU", blames_speaker=True)
