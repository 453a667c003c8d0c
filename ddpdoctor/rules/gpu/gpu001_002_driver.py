"""The driver and its library: there, loaded, or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "GPU001",
    "nvml-missing",
    Severity.ERROR,
    signatures=(
        r"NVML Shared Library Not Found",
        r"Found no NVIDIA driver on your system",
        r"libcuda\.so\.1: cannot open shared object file",
    ),
)
def nvml_missing(gpu: Gpu, environ: Environ | None = None) -> Iterator[Finding]:
    """An NVIDIA GPU is in this machine, but the management library libnvidia-ml.so.1 is not.

    ## Why it matters
    nvidia-smi and torch see no GPU: "Found no NVIDIA driver on your system". The driver is not installed, or this is a
    container that was started without access to the GPUs.

    ## Fix
    In a container: start it with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility. On the host: install the
    driver.

    ## Source
    nvmlInit answers LIBRARY_NOT_FOUND (12).
    """
    if gpu.nvml_error is None:
        gpu.need(gpu.devices or None, "devices")
    cards = [p for p in gpu.pci if p.is_nvidia]
    nodes = [n for n in gpu.device_nodes if n.removeprefix("nvidia").isdigit() or n == "nvidiactl"]
    if not cards and not nodes and gpu.nvml_error == "LIBRARY_NOT_FOUND":
        not_here("no NVIDIA GPU here")
    if gpu.nvml_error != "LIBRARY_NOT_FOUND":
        return
    seen = f"/dev/{nodes[0]}" if nodes else f"the NVIDIA GPU at {cards[0].bus_id}"
    # A container on a GPU host shows the host's PCI bus; without device nodes nobody may have asked for its GPUs.
    is_hidden = not nodes and any(p.driver == "nvidia" for p in cards)
    asked = environ.get("NVIDIA_VISIBLE_DEVICES") if environ else None
    softer = Severity.NOTE if is_hidden and asked in (None, "", "void", "none") else None
    yield Finding(
        f"libnvidia-ml.so.1 was not found although {seen} is here; expected the driver's library beside it",
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
        r"NVRM: The NVIDIA probe routine (was not called|failed)",
        r"NVRM: No NVIDIA (GPU|devices?|graphics adapter)",
    ),
)
def driver_not_loaded(gpu: Gpu) -> Iterator[Finding]:
    """The driver's library is installed, but the NVIDIA kernel driver is not loaded.

    ## Why it matters
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver": no CUDA call works. It is usual after
    a kernel update without a rebuilt module, with secure boot, or where nouveau took the card.

    ## Fix
    Load the module, or rebuild it for this kernel when modprobe says that there is none.

    ## Source
    nvmlInit answers DRIVER_NOT_LOADED (9): no kernel module, or no /dev/nvidiactl.
    """
    if gpu.nvml_error is None:
        gpu.need(gpu.devices or None, "devices")
    if gpu.nvml_error == "LIBRARY_NOT_FOUND":
        not_here("no NVIDIA GPU here, or no driver library: libnvidia-ml.so.1 is not installed")
    if gpu.nvml_error != "DRIVER_NOT_LOADED":
        return
    detail = "; nouveau is loaded in its place" if "nouveau" in gpu.kernel_modules else ""
    if gpu.kernel_driver is not None:
        detail = f"; module {gpu.kernel_driver} is loaded on the host, but /dev/nvidiactl cannot be opened here"
    yield Finding(
        f"nvmlInit answered DRIVER_NOT_LOADED{detail}; expected the nvidia kernel module",
        evidence=(Evidence("gpu.nvml_error", "DRIVER_NOT_LOADED", "nvmlInit works"),),
        fix_command=None if gpu.kernel_driver else "modprobe nvidia",
    )


NOT_LOADED = (
    r"couldn't communicate with the NVIDIA driver",
    r"NVML: Driver Not Loaded",
    r"NVRM: The NVIDIA probe routine (was not called|failed)",
    r"NVRM: No NVIDIA (GPU|devices?|graphics adapter)",
)


OFF_THE_BUS = (r"fallen off the bus",)


@driver_not_loaded.look
def driver_not_loaded_in_log(log: Log) -> Iterator[Finding]:
    """The driver is not there; a GPU that has fallen off the bus makes its probe fail as well."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NOT_LOADED)
    if matching_lines(log, OFF_THE_BUS):
        lines = [line for line in lines if "probe routine failed" not in line.text]
    if lines:
        yield finding_of(
            log, lines, "The NVIDIA kernel driver is not loaded, or has not taken the GPUs", blames_speaker=True
        )
