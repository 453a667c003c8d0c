"""`versions`: the installed torch, CUDA, NCCL and Python and the libraries that would be loaded, without importing torch."""

from __future__ import annotations

import re

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.light_dataclass import dataclass

__all__ = ["NcclLibrary", "Package", "TorchPlace", "Versions", "numbers"]


@dataclass(frozen=True, slots=True)
class NcclLibrary:
    """One libnccl.so that the loader could pick. `source` is how the loader finds it.

    `source`: `LD_PRELOAD`, `RPATH` (torch's own), `LD_LIBRARY_PATH`, `RUNPATH`, `ld.so.cache`, `conda`, `wheel` or `system`.
    `reads` are the variables `NCCL_…` of the environment whose names its texts contain; None where the texts were not read.
    """

    path: str
    source: str
    version: str | None = None
    reads: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution, by the name of its .dist-info folder."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class TorchPlace:
    """A folder `torch` on sys.path; only the first one is imported."""

    path: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Versions(Section):
    """`torch` is None when no torch is installed for `python_path`; `torch_cuda` is None for a build without CUDA.

    `torch_abi` is the Python that torch/_C was compiled for (`cpython-311`). `torch_archs` are the GPU architectures of
    the build (`sm_90`, `compute_90`). `torches` are all torch folders on sys.path, the imported one first.
    `nccl_libraries` are in the order of the loader: the first one wins. `nccl_is_static`: it is inside libtorch_cuda.so.
    `nccl_required` is the version that torch's own metadata pins. `libcuda_version` is the driver version in the name of
    the libcuda.so.1 that would be loaded. `torchrun_prefix` and `shell_prefix` are the environments (sys.prefix) of the
    torchrun and of the python that come first on PATH; `shell_has_torch`: that python finds a torch.
    """

    python: str = ""
    python_path: str = ""
    torch: str | None = None
    torch_path: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    torch_xpu: str | None = None
    torch_git: str | None = None
    torch_is_debug: bool | None = None
    torch_abi: str | None = None
    torch_archs: tuple[str, ...] = ()
    torches: tuple[TorchPlace, ...] = ()
    nccl_is_static: bool | None = None
    nccl_libraries: tuple[NcclLibrary, ...] = ()
    nccl_required: str | None = None
    nccl_packages: tuple[Package, ...] = ()
    numpy: str | None = None
    libcuda_path: str | None = None
    libcuda_version: str | None = None
    torchrun_path: str | None = None
    torchrun_prefix: str | None = None
    shell_python: str | None = None
    shell_prefix: str | None = None
    shell_has_torch: bool | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def build(self) -> str:
        """`CUDA 12.4`, `ROCm 6.2`, `XPU …`, `CPU`, or "" without torch."""
        if self.torch is None:
            return ""
        for word, version in (("CUDA", self.torch_cuda), ("ROCm", self.torch_hip), ("XPU", self.torch_xpu)):
            if version:
                return f"{word} {version}"
        return "CPU"

    @property
    def has_nccl(self) -> bool | None:
        """Whether the backend `nccl` is built in (RCCL on ROCm); None without torch. Linux builds with CUDA always have it."""
        return None if self.torch is None else bool(self.torch_cuda or self.torch_hip)

    @property
    def nccl(self) -> NcclLibrary | None:
        """The NCCL library that would be loaded; None for a static one, or when none was found."""
        return self.nccl_libraries[0] if self.nccl_libraries and not self.nccl_is_static else None

    @property
    def libcuda_is_compat(self) -> bool:
        """Whether the libcuda that would be loaded is from a forward compatibility package, not from the driver."""
        return self.libcuda_path is not None and "/compat/" in self.libcuda_path


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison: (2, 21, 5) for `2.21.5+cuda12.4`."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
