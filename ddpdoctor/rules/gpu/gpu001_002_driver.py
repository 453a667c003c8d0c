"""GPU001, GPU002: the NVIDIA driver or its library is missing or not loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

_GPU_NODE = re.compile(r"nvidia\d+")


@cause(
    "GPU001",
    "nvml-missing",
    Severity.ERROR,
    signatures=(
        r"NVML Shared Library Not Found",
        r"Found no NVIDIA driver on your system",
        r"libcuda\.so\.1: cannot open shared object file",
        r"Failed to open libnvidia-ml\.so\.1",
    ),
)
def nvml_missing(gpu: Gpu, environ: Environ | None = None) -> Iterator[Finding]:
    """This machine has an NVIDIA GPU, but the driver library libnvidia-ml.so.1 is missing.

    ## Why it matters
    nvidia-smi and torch see no GPU: `Found no NVIDIA driver on your system`. Either the driver is not installed, or the
    container was started without access to the GPUs.

    ## Fix
    Start the container with `--gpus all` and `NVIDIA_DRIVER_CAPABILITIES=compute,utility` (in Kubernetes, request
    `nvidia.com/gpu`); outside a container, install the NVIDIA driver on that node.

    ## Example
    In the container:

        RuntimeError: Found no NVIDIA driver on your system.

    The command that starts it:

        # before
        docker run IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all IMAGE torchrun --nproc-per-node 8 train.py

    ## Source
    nvmlInit returns LIBRARY_NOT_FOUND (12).
    """
    if gpu.nvml_error is None:
        gpu.need(gpu.devices or None, "devices")
    cards = [p for p in gpu.pci if p.is_nvidia]
    nodes = [n for n in gpu.device_nodes if n.removeprefix("nvidia").isdigit() or n == "nvidiactl"]
    if not cards and not nodes and gpu.nvml_error == "LIBRARY_NOT_FOUND":
        not_here("no NVIDIA GPU")
    if gpu.nvml_error != "LIBRARY_NOT_FOUND":
        return
    gpu_seen = f"/dev/{nodes[0]} exists" if nodes else f"there is an NVIDIA GPU at {cards[0].bus_id}"
    # A container on a GPU host shows the host's PCI bus; without device nodes the job may not have requested any GPU.
    is_hidden = not nodes and any(p.driver == "nvidia" for p in cards)
    asked = environ.get("NVIDIA_VISIBLE_DEVICES") if environ else None
    softer = Severity.NOTE if is_hidden and asked in (None, "", "void", "none") else None
    yield Finding(
        f"libnvidia-ml.so.1 not found, although {gpu_seen}",
        evidence=(Evidence("gpu.nvml_error", "LIBRARY_NOT_FOUND", "nvmlInit works"),),
        severity=softer,
    )


@cause(
    "GPU002",
    "driver-not-loaded",
    Severity.ERROR,
    signatures=(
        r"couldn't communicate with the NVIDIA driver",
        r"NVML: Driver Not Loaded",
        r"nvmlInit\w{0,20}\(\) failed: Driver Not Loaded",
        r"NVRM: The NVIDIA probe routine (was not called|failed)",
        r"NVRM: No NVIDIA (GPU|devices?|graphics adapter)",
    ),
)
def driver_not_loaded(gpu: Gpu) -> Iterator[Finding]:
    """The NVIDIA kernel driver is not loaded, although its library is installed.

    ## Why it matters
    No CUDA call works: `NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver`. The usual reasons are a
    kernel update without a rebuilt module, secure boot, or nouveau driving the card.

    ## Fix
    Run `modprobe nvidia` on that node as root; if the module does not exist, rebuild it for the running kernel.

    ## Example
    nvidia-smi prints:

        NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.

    After a kernel update with DKMS, on that node as root:

        dkms autoinstall
        modprobe nvidia
        nvidia-smi

    ## Source
    nvmlInit returns DRIVER_NOT_LOADED (9): no kernel module, or no /dev/nvidiactl.
    """
    if gpu.nvml_error is None:
        gpu.need(gpu.devices or None, "devices")
    if gpu.nvml_error == "LIBRARY_NOT_FOUND":
        not_here("no NVIDIA GPU")
    if gpu.nvml_error != "DRIVER_NOT_LOADED":
        return
    if not _has_hardware(gpu):
        not_here("the NVIDIA library is installed, but no NVIDIA device is on the PCI bus")
    instead = "; nouveau is loaded instead" if "nouveau" in gpu.kernel_modules else ""
    message = f"the NVIDIA kernel driver is not loaded (NVML: DRIVER_NOT_LOADED){instead}"
    if gpu.kernel_driver is not None:
        message = f"/dev/nvidiactl cannot be opened here, although driver {gpu.kernel_driver} is loaded on the host"
    yield Finding(
        message,
        evidence=(Evidence("gpu.nvml_error", "DRIVER_NOT_LOADED", "nvmlInit works"),),
        fix_command=None if gpu.kernel_driver else "modprobe nvidia",
    )


def _has_hardware(gpu: Gpu) -> bool:
    """Whether anything but the library shows an NVIDIA GPU; as root, nvmlInit leaves /dev/nvidiactl behind, which shows none."""
    is_listed = any(p.is_nvidia for p in gpu.pci) or not gpu.pci_devices
    return is_listed or gpu.kernel_driver is not None or any(_GPU_NODE.fullmatch(node) for node in gpu.device_nodes)


NOT_LOADED = (
    r"couldn't communicate with the NVIDIA driver",
    r"NVML: Driver Not Loaded",
    r"NVRM: The NVIDIA probe routine (was not called|failed)",
    r"NVRM: No NVIDIA (GPU|devices?|graphics adapter)",
)


OFF_THE_BUS = (r"fallen off the bus",)


@driver_not_loaded.look
def driver_not_loaded_in_log(log: Log) -> Iterator[Finding]:
    """The driver is not loaded. `probe routine failed` alone can also come from a GPU that has fallen off the bus."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NOT_LOADED)
    if matching_lines(log, OFF_THE_BUS):
        lines = [line for line in lines if "probe routine failed" not in line.text]
    if lines:
        yield finding_of(
            log, lines, "The NVIDIA kernel driver is not loaded, or did not attach to the GPUs", blames_speaker=True
        )
