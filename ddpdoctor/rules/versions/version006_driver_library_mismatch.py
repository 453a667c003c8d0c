"""VERSION006: kernel module and libraries of the driver."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus

MISMATCH = 803


@cause(
    "VERSION006",
    "driver-library-mismatch",
    Severity.ERROR,
    also_in=("gpus",),
    signatures=(
        "[Dd]river/library version mismatch",
        "unsupported display driver / cuda driver combination",
        "NVRM: API mismatch",
    ),
)
def driver_library_mismatch(gpu: Gpu, versions: Versions) -> Iterator[Finding]:
    """The loaded kernel module and the libraries of the NVIDIA driver have different versions.

    ## Why it matters
    After an update of the driver's packages the old module stays loaded: `Driver/library version mismatch`, or CUDA
    error 803. Jobs that run go on, new ones fail.

    ## Fix
    Reboot the node, or stop everything on the GPUs and reload the nvidia modules; pin the driver's packages.
    """
    kernel, library = gpu.kernel_driver, versions.libcuda_version
    if gpu.nvml_error == "LIB_RM_VERSION_MISMATCH":
        seen = f"the kernel module is {kernel}" if kernel else "NVML refuses the kernel module"
        other = f", the libraries are {library}" if library and library != kernel else ""
        evidence = Evidence("gpu.nvml_error", gpu.nvml_error, "none")
        yield Finding(f"{seen}{other}: expected the same version of both", (evidence,), fix_command="reboot")
        return
    if gpu.cuda_error == MISMATCH:
        yield Finding(
            "cuInit answers 803 (unsupported driver combination): expected the same version of kernel module and libcuda",
            (Evidence("gpu.cuda_error", str(MISMATCH), "0"),),
            fix_command="reboot",
        )
        return
    if kernel is None:
        need_gpus(gpu)
        not_here("no NVIDIA kernel module is loaded")
    if library is None or library == kernel or versions.libcuda_is_compat:
        return
    yield Finding(
        f"{versions.libcuda_path} is of driver {library}, the kernel module of {kernel}: expected the same version",
        (Evidence("versions.libcuda_version", library, kernel),),
    )
