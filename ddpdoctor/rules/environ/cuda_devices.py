"""ENV060, ENV061, ENV064, ENV065: which GPUs, libraries and servers CUDA finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.visibility import joined, listed, visible
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.environ.settings import about

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.host import Host

__all__ = ["capabilities_missing", "mps_daemon_absent", "one_gpu_per_rank", "order_ambiguous"]

MPS = "CUDA_MPS_PIPE_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@rule(
    "ENV060",
    "cuda-mps-daemon-absent",
    Severity.ERROR,
    signatures=(r"cudaErrorMpsConnectionFailed", r"MPS client failed to connect to the MPS control daemon"),
)
def mps_daemon_absent(environ: Environ) -> Iterator[Finding]:
    """CUDA_MPS_PIPE_DIRECTORY is set, and no MPS daemon is there.

    ## Why it matters
    The program was meant to share its GPU through the MPS server. Without one CUDA fails or waits at its first call ("MPS
    client failed to connect to the MPS control daemon"), or runs without sharing.

    ## Fix
    Unset CUDA_MPS_PIPE_DIRECTORY, or start nvidia-cuda-mps-control -d on the node.

    ## Source
    NVIDIA Multi-Process Service, environment variables.
    """
    control = environ.named(MPS)
    if control is not None and not control.exists and environ.get(MPS) != "/dev/null":  # which is how MPS is avoided
        wrong = "holds no control pipe of an MPS daemon"
        yield about(environ, MPS, wrong, "it to be unset, or a daemon", severity=Severity.WARNING)
    elif control is not None and control.is_answered is False:
        wrong = "holds the control pipe of an MPS daemon that is gone: nobody reads it"
        yield about(environ, MPS, wrong, "it to be unset, or a daemon that runs")


@rule("ENV061", "nvidia-driver-capabilities-missing", Severity.ERROR)
def capabilities_missing(environ: Environ, host: Host | None = None, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NVIDIA_DRIVER_CAPABILITIES lacks compute or utility.

    ## Why it matters
    The container gets the GPUs but not libcuda (compute) or libnvidia-ml (utility): torch sees no GPU, nvidia-smi is
    missing, and NCCL cannot ask NVML.

    ## Fix
    Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.

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


@rule(
    "ENV064",
    "one-gpu-visible-per-rank",
    Severity.ERROR,
    signatures=(
        r"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found",
        r"transport/p2p\.cc:\d+ NCCL WARN Cuda failure (101 )?'invalid device ordinal'",
        r"Child failed to attach to shmseg",
        r"local_rank \d+ exceeds available GPUs in CUDA_VISIBLE_DEVICES",
    ),
)
def one_gpu_per_rank(environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """Every rank sees only its own GPU, while the code may select cuda:LOCAL_RANK.

    ## Why it matters
    Each task sees one GPU, and calls it 0: cuda:LOCAL_RANK is out of range on all but the first, and older NCCL cannot set
    up CUDA IPC ("nvmlDeviceGetHandleByPciBusId() failed: Not Found").

    ## Fix
    Use --gpus-per-node instead of --gpus-per-task (or add --gpu-bind=none), or select cuda:0 in every rank.

    ## Source
    Slurm, --gpus-per-task; torch/cuda/__init__.py: set_device.
    """
    ranks, seen = environ.local_world_size, environ.get(VISIBLE)
    if environ.launcher in (None, TORCHRUN) or not ranks or ranks < 2 or not seen or listed(seen) != 1 or joined(seen):
        return
    if gpu is not None and gpu.devices and not visible(environ.variables, gpu).count:
        return  # that GPU is not here: ENV063
    wrong = f"shows each of {ranks} ranks of this node one GPU, which is cuda:0 for every one of them"
    expected = f"{ranks} GPUs, unless the code selects cuda:0"
    yield about(environ, VISIBLE, wrong, expected, severity=Severity.NOTE, command="export SLURM_GPU_BIND=none")


@rule("ENV065", "cuda-device-order-ambiguous", Severity.WARNING)
def order_ambiguous(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """Unlike GPUs are numbered by speed, not by their place on the PCI bus.

    ## Why it matters
    CUDA calls the fastest GPU 0, nvidia-smi the first one on the bus: index 0 means two different cards, also in
    CUDA_VISIBLE_DEVICES.

    ## Fix
    Set CUDA_DEVICE_ORDER=PCI_BUS_ID.

    ## Source
    CUDA programming guide, CUDA_DEVICE_ORDER.
    """
    names = sorted({device.name for device in gpu.need(gpu.devices or None, "devices") if device.name})
    chosen = environ.get(VISIBLE)
    by_number = chosen is not None and chosen[:1].isdecimal()
    if len(names) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or (chosen and not by_number):
        return
    name = VISIBLE if by_number else "CUDA_DEVICE_ORDER"
    wrong = f"counts {' and '.join(names)[:120]} by speed, nvidia-smi by their place on the bus"
    softer = None if by_number else Severity.NOTE
    command = "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    yield about(environ, name, wrong, "CUDA_DEVICE_ORDER=PCI_BUS_ID", severity=softer, command=command)
