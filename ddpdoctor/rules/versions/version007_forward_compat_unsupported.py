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
    """A CUDA compatibility library would be loaded where it cannot work.

    ## Why it matters
    Images bring a newer libcuda.so.1 in a folder `compat`. It works on data-centre GPUs with a driver that is older than
    itself; on a GeForce card CUDA stops with error 804, `forward compatibility was attempted on non supported HW`, and
    with a newer driver with error 803.

    ## Fix
    Take the compat folder out of LD_LIBRARY_PATH, or update the driver.
    """
    if gpu.cuda_error == UNSUPPORTED:
        yield Finding(
            f"cuInit answers 804 (forward compatibility on hardware without it), "
            f"through {versions.libcuda_path or 'libcuda.so.1'}: "
            "expected the driver's own libcuda",
            (Evidence("gpu.cuda_error", str(UNSUPPORTED), "0"),),
        )
        return
    if not gpu.devices or not versions.libcuda_is_compat:
        not_here("no CUDA compatibility library would be loaded here")
    consumer = next((d.name for d in gpu.devices if d.name and any(word in d.name for word in CONSUMER)), None)
    library, kernel = versions.libcuda_version, gpu.kernel_driver or gpu.driver_version
    if consumer:
        expected = f"the driver's own libcuda for a {consumer}"
    elif library and kernel and numbers(library) < numbers(kernel):
        expected = f"nothing older than the kernel module, {kernel}"
    else:
        return
    yield Finding(
        f"{versions.libcuda_path} ({library or 'version unknown'}) would be loaded: expected {expected}",
        (Evidence("versions.libcuda_path", versions.libcuda_path or "", expected),),
    )
