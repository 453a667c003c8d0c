"""`ddpdoctor versions`: torch, CUDA, NCCL, driver and Python, as read from files."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.cli.screens.groups import PropertyRow, draw_groups, draw_missing, known
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.versions import Versions

__all__ = ["draw"]


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The facts of `versions`, at most `width` columns wide."""
    if facts.versions is None:
        return draw_missing(facts, "versions", width=width, colour=colour)
    versions = facts.versions
    groups = (
        ("Python", _python(versions)),
        ("torch", _torch(versions)),
        ("NCCL", _nccl(versions)),
        ("driver", _driver(versions, facts.gpu)),
    )
    return draw_groups(groups, width=width, colour=colour)


def _python(versions: Versions) -> Iterator[PropertyRow]:
    yield PropertyRow("Python", versions.python or "n/a", versions.python_path)
    yield PropertyRow(
        "numpy",
        versions.numpy or "not installed",
        "" if versions.numpy else "needed by all_gather_object and similar calls",
    )
    if versions.torchrun_path is None:
        remark = "python -m torch.distributed.run does the same" if versions.torch else ""
        yield PropertyRow("torchrun", "not on PATH", remark)
        return
    own, shell = versions.torchrun_prefix, versions.shell_prefix
    is_other = own is not None and shell is not None and own != shell
    remark = f"of {own}, but {versions.shell_python} is of {shell}" if is_other else "of the same Python" if own else ""
    yield PropertyRow("torchrun", versions.torchrun_path, remark)


def _torch(versions: Versions) -> Iterator[PropertyRow]:
    if versions.torch_path is None:
        yield PropertyRow("torch", "not installed", f"for {versions.python_path}")
        return
    yield known(versions, "torch", versions.torch, "torch", versions.torch_path)
    yield PropertyRow("build", versions.build or "n/a", "debug build" if versions.torch_is_debug else "")
    if versions.torch_cuda:
        archs = " ".join(versions.torch_archs) or None
        yield known(versions, "architectures", archs, "torch_archs")
    yield PropertyRow("git", (versions.torch_git or "n/a")[:12])
    for place in versions.torches[1:]:
        yield PropertyRow("hidden torch", place.version or "unknown", place.path)


def _nccl(versions: Versions) -> Iterator[PropertyRow]:
    if not versions.torch_cuda:
        words = (
            "" if versions.torch is None else f"a {versions.build} build has {'RCCL' if versions.torch_hip else 'none'}"
        )
        yield PropertyRow("NCCL", "n/a", words)
        return
    if versions.nccl_is_static:
        yield PropertyRow("NCCL", "inside torch", "linked statically into libtorch_cuda.so")
    required = f", torch needs {versions.nccl_required}" if versions.nccl_required else ""
    for i, library in enumerate(versions.nccl_libraries):
        what = "NCCL" if i == 0 and not versions.nccl_is_static else "not loaded"
        why = f"by {library.source}{required if what == 'NCCL' else ''}"
        yield PropertyRow(what, library.version or "version unknown", f"{library.path} {why}")
    if not versions.nccl_libraries and not versions.nccl_is_static:
        yield PropertyRow("NCCL", "not found", f"torch {versions.torch} needs libnccl.so.2{required}")
    for package in versions.nccl_packages:
        yield PropertyRow("package", package.name, package.version)


def _driver(versions: Versions, gpu: Gpu | None) -> Iterator[PropertyRow]:
    if gpu is None:
        yield PropertyRow("driver", "unknown", "the GPUs were not queried")
    else:
        version = gpu.driver_version or gpu.kernel_driver
        yield known(gpu, "driver", version, "driver_version", gpu.nvml_error or "")
        cuda = f"{gpu.driver_cuda // 1000}.{gpu.driver_cuda % 1000 // 10}" if gpu.driver_cuda else None
        yield known(gpu, "CUDA, at most", cuda, "driver_cuda")
    if versions.libcuda_path is None:
        yield PropertyRow("libcuda.so.1", "not found")
    else:
        remark = "forward compatibility" if versions.libcuda_is_compat else ""
        yield PropertyRow(
            "libcuda.so.1", versions.libcuda_version or "version unknown", f"{versions.libcuda_path} {remark}".strip()
        )
