"""VERSION007: CUDA's forward compatibility."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

UNSUPPORTED = 804
CONSUMER = ("GeForce", "TITAN")


@cause(
    "VERSION007",
    "forward-compat-unsupported",
    Severity.ERROR,
    signatures=("forward compatibility was attempted on non supported HW",),
)
def forward_compat_unsupported(versions: Versions, gpu: Gpu) -> Iterator[Finding]:
    """torch would load a CUDA compatibility library that does not support this GPU or driver.

    ## Why it matters
    Container images bring a newer libcuda.so.1 in a folder `compat`, which works only on data-center GPUs with a
    driver older than itself. On a GeForce card CUDA stops with error 804, `forward compatibility was attempted on
    non supported HW`, and with a newer driver with error 803.

    ## Fix
    Remove the compat folder from LD_LIBRARY_PATH, or update the driver.

    ## Example

        CUDA error 804: forward compatibility was attempted on non supported HW

        # before
        export LD_LIBRARY_PATH=/usr/local/cuda/compat
        # after
        unset LD_LIBRARY_PATH
    """
    if gpu.cuda_error == UNSUPPORTED:
        yield Finding(
            f"cuInit returns 804: this GPU does not support {versions.libcuda_path or 'libcuda.so.1'}"
            " (forward compatibility)",
            (Evidence("gpu.cuda_error", str(UNSUPPORTED), "0"),),
        )
        return
    if not gpu.devices or not versions.libcuda_is_compat:
        not_here("no CUDA compatibility library would be loaded here")
    consumer = next((d.name for d in gpu.devices if d.name and any(word in d.name for word in CONSUMER)), None)
    library, kernel = versions.libcuda_version, gpu.kernel_driver or gpu.driver_version
    if consumer:
        problem, expected = f"does not support consumer GPUs ({consumer})", "the driver's own libcuda"
    elif library and kernel and numbers(library) < numbers(kernel):
        problem, expected = f"is older than the kernel module ({kernel})", f"{kernel} or later"
    else:
        return
    yield Finding(
        f"{versions.libcuda_path} ({library or 'version unknown'}) {problem}",
        (Evidence("versions.libcuda_path", versions.libcuda_path or "", expected),),
    )
