"""VERSION005: the CUDA version that the driver supports."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus


@cause(
    "VERSION005",
    "driver-too-old",
    Severity.ERROR,
    signatures=(
        "NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient",
        "PTX was compiled with an unsupported toolchain",
        "API call is not supported in the installed CUDA driver",
        r"requires CUDA driver [\d.]+ or later \(found",
        r"if the installed CUDA driver < R\d+",
        "Unable to create thread context due to old driver",
    ),
)
def driver_too_old(versions: Versions, gpu: Gpu) -> Iterator[Finding]:
    """The driver does not support the CUDA version that this torch was built with.

    ## Why it matters
    torch fails with `The NVIDIA driver on your system is too old (found version 11060)`; that number is the newest
    CUDA version that the driver supports, not its own version. CUDA builds run on older drivers within one major
    version, but not with a newer major version.

    ## Fix
    Update the driver on that node, or install the torch build for the driver's CUDA version.

    ## Example

        RuntimeError: The NVIDIA driver on your system is too old (found version 11040).

        # before: the driver supports CUDA 11.4
        pip install torch
        # after
        pip install torch --index-url https://download.pytorch.org/whl/cu118

    ## Source
    Confirmed in https://github.com/IEIT-Yuan/Yuan-2.0/issues/65 (a driver for the CUDA version of the container).
    """
    need_gpus(gpu)
    if versions.torch_cuda is None:
        not_here("no torch with CUDA")
    supported = gpu.need(gpu.driver_cuda, "driver_cuda")
    built = numbers(versions.torch_cuda)
    if not supported or not built or built[0] <= supported // 1000 or versions.libcuda_is_compat:
        return
    newest = f"{supported // 1000}.{supported % 1000 // 10}"
    yield Finding(
        f"torch {versions.torch} needs CUDA {versions.torch_cuda}, but driver {gpu.driver_version} supports CUDA {newest}",
        (Evidence("gpu.driver_cuda", str(supported), f"at least {built[0]}000"),),
    )
