"""GPU003: NVML works, but CUDA cannot start."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

UNKNOWN = (100, 999)
"""What cuInit returns without the device node: no device, or unknown error."""


@cause(
    "GPU003",
    "uvm-device-missing",
    Severity.ERROR,
    signatures=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
)
def uvm_device_missing(gpu: Gpu, host: Host | None = None) -> Iterator[Finding]:
    """The device node /dev/nvidia-uvm is missing, so CUDA cannot start.

    ## Why it matters
    nvidia-smi works, but torch fails with `CUDA unknown error - this may be due to an incorrectly set up environment` (999) or
    finds no device (100).

    ## Fix
    Run `modprobe nvidia-uvm && nvidia-modprobe -u -c=0` as root on the host; for a container also map /dev/nvidia-uvm, or
    use `--gpus all`.

    ## Example
    In the log:

        RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment

    The command that starts the container:

        # before
        docker run --device /dev/nvidia0 --device /dev/nvidiactl IMAGE python train.py
        # after
        docker run --gpus all IMAGE python train.py

    ## Source
    The names in /dev; cuInit returns 999 or 100. Outside a container, CUDA can create the node itself if nvidia-modprobe is
    installed, so a missing name alone is only a note there.
    """
    gpu.answering()
    if gpu.cuda_error in UNKNOWN and "nvidia-uvm" not in gpu.device_nodes:
        yield Finding(
            f"/dev/nvidia-uvm is missing, and CUDA cannot start (cuInit returns {gpu.cuda_error})",
            (Evidence("gpu.cuda_error", str(gpu.cuda_error), "0"),),
            fix_command="modprobe nvidia-uvm && nvidia-modprobe -u -c=0",
        )
        return
    if "nvidiactl" not in gpu.device_nodes:
        not_here("no NVIDIA device nodes in /dev (WSL, or saved facts without them)")
    if "nvidia-uvm" in gpu.device_nodes:
        return
    is_container = host is not None and host.is_container
    yield Finding(
        "/dev/nvidia-uvm is missing; CUDA cannot start without it",
        (Evidence("gpu.device_nodes", ", ".join(gpu.device_nodes)[:120], "includes nvidia-uvm"),),
        fix_command="docker run --gpus all …" if is_container else "modprobe nvidia-uvm && nvidia-modprobe -u -c=0",
        severity=None if is_container else Severity.NOTE,
    )
