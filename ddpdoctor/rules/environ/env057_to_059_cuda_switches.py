"""ENV057 to ENV059: CUDA's debugging switches that slow training down."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, number

__all__ = ["cuda_debug_variable_set", "cuda_launch_blocking_on", "cuda_max_connections_one"]

_TENSOR_PARALLEL = re.compile(
    r"tensor[-_](model[-_])?parallel|sequence[-_]parallel|megatron|nemo|--tp\b", re.IGNORECASE
)
OFF = ("", "0", "false", "off", "no")
HARMFUL = {
    "CUDA_FORCE_PTX_JIT": "compiles every kernel at the start",
    "CUDA_CACHE_DISABLE": "compiles kernels again in every process",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "makes every allocation a cudaMalloc",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "makes a failed GPU wait for a debugger",
    "CUDA_PROFILE": "profiles every kernel",
    "COMPUTE_PROFILE": "profiles every kernel",
    "OPENCL_PROFILE": "profiles every kernel",
    "NSIGHT_CUDA_DEBUGGER": "attaches a debugger",
    "CUDA_AUTO_BOOST": "changes the clocks of the GPU",
}
"""Variables for debugging, and their effects. DCGM's diagnostics refuse to run with most of them."""
MILD = {
    "CUDA_INJECTION32_PATH": "loads a tool into every CUDA program",
    "CUDA_INJECTION64_PATH": "loads a tool into every CUDA program",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "writes the GPU's memory to a file when a kernel fails",
}
"""The same, but some users keep these on permanently."""


@cause("ENV057", "cuda-launch-blocking-on", Severity.WARNING)
def cuda_launch_blocking_on(environ: Environ) -> Iterator[Finding]:
    """CUDA_LAUNCH_BLOCKING is on.

    ## Why it matters
    Every launch waits until its kernel has finished. Neither computation nor NCCL overlaps, and training is several
    times slower without a message.

    ## Fix
    Unset CUDA_LAUNCH_BLOCKING.

    ## Example

        CUDA_LAUNCH_BLOCKING=1 makes every kernel launch wait for the kernel

        # before
        export CUDA_LAUNCH_BLOCKING=1
        # after
        unset CUDA_LAUNCH_BLOCKING

    ## Source
    CUDA programming guide, environment variables; NCCL src/misc/cudawrap.cc reads it too.
    """
    if (environ.get("CUDA_LAUNCH_BLOCKING") or "").strip() not in ("", "0"):
        yield about(environ, "CUDA_LAUNCH_BLOCKING", "makes every kernel launch wait for the kernel", "unset")


@cause("ENV058", "cuda-max-connections-one", Severity.NOTE)
def cuda_max_connections_one(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS=1 without tensor parallelism.

    ## Why it matters
    One hardware queue keeps the order that Megatron's tensor parallelism relies on. In other programs it prevents
    communication from overlapping computation.

    ## Fix
    Unset CUDA_DEVICE_MAX_CONNECTIONS, unless tensor or sequence parallelism needs it.

    ## Example

        CUDA_DEVICE_MAX_CONNECTIONS=1 prevents communication from overlapping computation

        # before
        export CUDA_DEVICE_MAX_CONNECTIONS=1
        # after
        unset CUDA_DEVICE_MAX_CONNECTIONS

    ## Source
    CUDA programming guide, environment variables; Megatron-LM's checks of its arguments.
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    lines = launch.lines if launch is not None else ()
    if number(environ, name) == 1 and not any(_TENSOR_PARALLEL.search(line.source) for line in lines):
        wrong = "prevents communication from overlapping computation"
        yield about(environ, name, wrong, "unset, unless tensor parallelism needs it")


@cause("ENV059", "cuda-debug-variable-set", Severity.WARNING)
def cuda_debug_variable_set(environ: Environ) -> Iterator[Finding]:
    """A CUDA debugging variable that harms training is set.

    ## Why it matters
    These switches of profilers, debuggers, and compilers change speed or behavior, and no log mentions them.

    ## Fix
    Unset it for training.

    ## Example

        CUDA_FORCE_PTX_JIT=1 compiles every kernel at the start

        # before
        export CUDA_FORCE_PTX_JIT=1
        # after
        unset CUDA_FORCE_PTX_JIT

    ## Source
    NVIDIA DCGM, the environment variables that its diagnostics refuse; CUDA programming guide, environment
    variables.
    """
    for names, severity in ((HARMFUL, None), (MILD, Severity.NOTE)):
        for name, wrong in names.items():
            if (environ.get(name) or "").strip().lower() not in OFF:
                yield about(environ, name, wrong, "unset for training", severity=severity)
    if (environ.get("NVIDIA_TF32_OVERRIDE") or "").strip() == "0":
        wrong = "disables TF32 everywhere, even where the program enables it"
        yield about(environ, "NVIDIA_TF32_OVERRIDE", wrong, "unset", severity=Severity.NOTE)
