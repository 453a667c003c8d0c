"""VERSION010: NCCL asked for, not built in."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

BACKENDS = ("PL_TORCH_DISTRIBUTED_BACKEND", "DISTRIBUTED_BACKEND", "TORCH_DISTRIBUTED_BACKEND")
"""Variables with which frameworks choose the backend; a script's own choice is judged with the script."""


@rule("VERSION010", "nccl-not-built-in", Severity.ERROR, signatures=("Distributed package doesn't have NCCL",))
def check(versions: Versions, environ: Environ) -> Iterator[Finding]:
    """The backend nccl is asked for from a torch that was built without NCCL.

    ## Why it matters
    init_process_group stops with `Distributed package doesn't have NCCL built in`. On Linux that means the CPU build of
    torch.

    ## Fix
    Use the backend gloo on machines without GPUs, or install the CUDA build of torch.
    """
    if versions.has_nccl is None:
        not_here("no torch is installed")
    name = next((name for name in BACKENDS if (environ.get(name) or "").lower() == "nccl"), None)
    if name and not versions.has_nccl:
        yield Finding(
            f"{name}=nccl with torch {versions.torch}, a {versions.build} build without NCCL: expected gloo",
            (Evidence(f"environ.variables.{name}", "nccl", "gloo"),),
            fix_command=f"export {name}=gloo",
        )
