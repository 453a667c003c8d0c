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
    error 803. Running jobs continue, but new ones fail.

    ## Fix
    Reboot the node, or stop all processes on the GPUs and reload the nvidia modules; pin the driver's packages.

    ## Example

        Failed to initialize NVML: Driver/library version mismatch

        # before: packages were updated, the old module is still loaded
        nvidia-smi
        # after, on that node
        reboot
    """
    kernel, library = gpu.kernel_driver, versions.libcuda_version
    if gpu.nvml_error == "LIB_RM_VERSION_MISMATCH":
        module = f"the NVIDIA kernel module is {kernel}" if kernel else "NVML rejects the NVIDIA kernel module"
        other = f", but the libraries are {library}" if library and library != kernel else ""
        evidence = Evidence("gpu.nvml_error", gpu.nvml_error, "none")
        text = f"{module}{other}" if other or not kernel else f"{module}, but the libraries have another version"
        yield Finding(text, (evidence,), fix_command="reboot")
        return
    if gpu.cuda_error == MISMATCH:
        yield Finding(
            "cuInit returns 803: kernel module and libcuda have different versions",
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
        f"the NVIDIA kernel module is {kernel}, but {versions.libcuda_path} is {library}",
        (Evidence("versions.libcuda_version", library, kernel),),
    )
