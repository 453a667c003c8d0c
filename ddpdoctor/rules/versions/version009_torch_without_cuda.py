"""VERSION009: a CPU build of torch on a machine with GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.preconditions import need_gpus


@cause("VERSION009", "torch-without-cuda", Severity.ERROR, signatures=("Torch not compiled with CUDA enabled",))
def torch_without_cuda(versions: Versions, gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """torch is a build without CUDA on a machine with NVIDIA GPUs.

    ## Why it matters
    The job fails with `Torch not compiled with CUDA enabled`, or silently trains on the CPU. The package index or
    the solver chose the CPU build.

    ## Fix
    Uninstall torch on that node and install the build for the CUDA version of the driver.

    ## Example

        AssertionError: Torch not compiled with CUDA enabled

        # before
        pip install torch --index-url https://download.pytorch.org/whl/cpu
        # after
        pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128
    """
    need_gpus(gpu)
    if versions.torch is None:
        not_here("no torch")
    if versions.build != "CPU":
        return
    hidden = (environ.get("CUDA_VISIBLE_DEVICES") or "0").strip() == "-1" or environ.get("CUDA_VISIBLE_DEVICES") == ""
    name = gpu.devices[0].name or "GPU"
    yield Finding(
        f"torch {versions.torch} is built without CUDA, but this node has {len(gpu.devices)} x {name}",
        (Evidence("versions.torch_cuda", "none", "a CUDA version"),),
        fix_command=f"{versions.python_path or 'python'} -m pip install --force-reinstall torch",
        severity=Severity.NOTE if hidden else None,
    )
