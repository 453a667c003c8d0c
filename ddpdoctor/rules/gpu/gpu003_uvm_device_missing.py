"""GPU003: NVML works and CUDA cannot."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

UNKNOWN = (100, 999)
"""What cuInit answers without the device node: no device, or unknown error."""


@cause(
    "GPU003",
    "uvm-device-missing",
    Severity.ERROR,
    signatures=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
)
def uvm_device_missing(gpu: Gpu, host: Host | None = None) -> Iterator[Finding]:
    """The device node /dev/nvidia-uvm is missing, so that CUDA cannot start although nvidia-smi works.

    ## Why it matters
    torch says "CUDA unknown error - this may be due to an incorrectly set up environment" (999) or finds no device (100).

    ## Fix
    On the host load nvidia-uvm and make its node; in a container map /dev/nvidia-uvm as well.

    ## Source
    The names in /dev; cuInit answers 999 or 100. Outside a container CUDA can make the node itself when nvidia-modprobe is
    installed, so that a missing name alone is only a note there.
    """
    gpu.answering()
    if gpu.cuda_error in UNKNOWN and "nvidia-uvm" not in gpu.device_nodes:
        yield Finding(
            f"cuInit answers {gpu.cuda_error}, and /dev/nvidia-uvm is missing; expected 0",
            (Evidence("gpu.cuda_error", str(gpu.cuda_error), "0"),),
            fix_command="modprobe nvidia-uvm && nvidia-modprobe -u -c=0",
        )
        return
    if "nvidiactl" not in gpu.device_nodes:
        not_here("this machine has no NVIDIA device nodes in /dev (WSL, or facts without them)")
    if "nvidia-uvm" in gpu.device_nodes:
        return
    is_container = host is not None and host.is_container
    yield Finding(
        "/dev/nvidia-uvm is missing beside /dev/nvidiactl; expected it, for CUDA cannot start without it",
        (Evidence("gpu.device_nodes", ", ".join(gpu.device_nodes)[:120], "nvidia-uvm among them"),),
        fix_command="docker run --gpus all …" if is_container else "modprobe nvidia-uvm && nvidia-modprobe -u -c=0",
        severity=None if is_container else Severity.NOTE,
    )
