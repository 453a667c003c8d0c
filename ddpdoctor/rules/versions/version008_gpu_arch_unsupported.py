"""VERSION008: the GPU architectures of the torch build."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus

FIRST_CUDA = {9: (11, 8), 10: (12, 8), 11: (13, 0), 12: (12, 8)}
"""The first CUDA version whose compiler knows a major compute capability, for builds whose list cannot be read."""


@cause(
    "VERSION008",
    "gpu-arch-unsupported",
    Severity.ERROR,
    signatures=(
        "no kernel image is available for execution",
        r"NCCL WARN Cuda failure[^\n]{0,300}named symbol not found",
        "is not compatible with the current PyTorch installation",
        r"nvrtc: error: invalid value for --gpu-architecture",
        r"FlashAttention only supports Ampere GPUs or newer",
        r"Error: (?:HIP|CUDA) error: invalid device function",
    ),
)
def gpu_arch_unsupported(versions: Versions, gpu: Gpu) -> Iterator[Finding]:
    """This torch build has no kernels for a GPU of this machine.

    ## Why it matters
    torch fails with `no kernel image is available for execution on the device`, NCCL with `named symbol not found`.
    Simple operations may still work, so the installation looks correct.

    ## Fix
    Install a torch build whose architecture list includes this GPU; Blackwell needs CUDA 12.8 or later.

    ## Example

        RuntimeError: CUDA error: no kernel image is available for execution on the device

        # before, with an RTX 5090 (sm_120)
        pip install torch==2.6.0
        # after
        pip install torch==2.7.0 --index-url https://download.pytorch.org/whl/cu128

    ## Source
    CUDA: a kernel for sm_XY runs on GPUs of the same major version with a minor of Y or more; PTX (compute_XY) on
    all later ones. torch.cuda.get_arch_list() prints the list.
    Confirmed in https://github.com/pytorch/pytorch/issues/149845 (a newer driver and a wheel for CUDA 12.8).
    """
    need_gpus(gpu)
    if versions.torch_cuda is None:
        not_here("no torch with CUDA")
    for device in gpu.devices:
        if device.compute_capability is None or _runs_on(versions, device.compute_capability):
            continue
        built = " ".join(versions.torch_archs) or f"CUDA {versions.torch_cuda}"
        yield Finding(
            f"torch {versions.torch} has no kernels for GPU {device.index} ({device.name},"
            f" compute capability {device.compute_capability})",
            (Evidence("versions.torch_archs", built, f"sm_{device.compute_capability.replace('.', '')}"),),
            where=Where(gpu=device.index),
        )


def _runs_on(versions: Versions, capability: str) -> bool:
    major, minor = (*numbers(capability), 0, 0)[:2]
    if not versions.torch_archs:
        return numbers(versions.torch_cuda or "") >= FIRST_CUDA.get(major, (0,))
    return any(_has_kernel(arch, major, minor) for arch in versions.torch_archs)


def _has_kernel(arch: str, major: int, minor: int) -> bool:
    kind, _, number = arch.partition("_")
    is_exact = number.endswith("a")
    of_major, of_minor = divmod(int(number.rstrip("af")), 10)
    if is_exact:
        return (of_major, of_minor) == (major, minor)
    if kind == "compute" and not number.endswith("f"):
        return (of_major, of_minor) <= (major, minor)
    return of_major == major and of_minor <= minor
