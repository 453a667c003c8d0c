"""ENV057 to ENV059: CUDA's debugging switches that slow a training down."""

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
    "CUDA_CACHE_DISABLE": "compiles kernels anew in every process",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "makes every allocation a cudaMalloc",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "lets a failed GPU wait for a debugger",
    "CUDA_PROFILE": "profiles every kernel",
    "COMPUTE_PROFILE": "profiles every kernel",
    "OPENCL_PROFILE": "profiles every kernel",
    "NSIGHT_CUDA_DEBUGGER": "attaches a debugger",
    "CUDA_AUTO_BOOST": "changes the clocks of the GPU",
}
"""Variables that serve debugging, and what they do. DCGM's diagnostics refuse to run with most of them."""
MILD = {
    "CUDA_INJECTION32_PATH": "loads a tool into every CUDA program",
    "CUDA_INJECTION64_PATH": "loads a tool into every CUDA program",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "writes the GPU's memory to a file when a kernel fails",
}
"""The same, but people also leave these on for good."""


@cause("ENV057", "cuda-launch-blocking-on", Severity.WARNING)
def cuda_launch_blocking_on(environ: Environ) -> Iterator[Finding]:
    """CUDA_LAUNCH_BLOCKING is on.

    ## Why it matters
    Every launch waits until its kernel is done: nothing overlaps, neither computing nor NCCL, and training is several times
    slower. Only the variable shows it.

    ## Fix
    Unset CUDA_LAUNCH_BLOCKING.

    ## Source
    CUDA programming guide, environment variables; NCCL src/misc/cudawrap.cc reads it too.
    """
    if (environ.get("CUDA_LAUNCH_BLOCKING") or "").strip() not in ("", "0"):
        yield about(environ, "CUDA_LAUNCH_BLOCKING", "makes every kernel launch wait for the kernel", "it to be unset")


@cause("ENV058", "cuda-max-connections-one", Severity.NOTE)
def cuda_max_connections_one(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS=1 without tensor parallelism.

    ## Why it matters
    One hardware queue keeps the order that Megatron's tensor parallelism counts on. Elsewhere it keeps communication from
    running beside computation.

    ## Fix
    Unset CUDA_DEVICE_MAX_CONNECTIONS, unless tensor or sequence parallelism asks for it.

    ## Source
    CUDA programming guide, environment variables; Megatron-LM's checks of its arguments.
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    lines = launch.lines if launch is not None else ()
    if number(environ, name) == 1 and not any(_TENSOR_PARALLEL.search(each.source) for each in lines):
        wrong = "keeps communication from running beside computation"
        yield about(environ, name, wrong, "it to be unset, unless tensor parallelism needs it")


@cause("ENV059", "cuda-debug-variable-set", Severity.WARNING)
def cuda_debug_variable_set(environ: Environ) -> Iterator[Finding]:
    """A debugging variable of CUDA is set that harms training.

    ## Why it matters
    These switches of profilers, debuggers and compilers change speed or behaviour, and no log mentions them.

    ## Fix
    Unset it for training.

    ## Source
    NVIDIA DCGM, the environment variables that its diagnostics refuse; CUDA programming guide, environment variables.
    """
    for names, severity in ((HARMFUL, None), (MILD, Severity.NOTE)):
        for name, wrong in names.items():
            if (environ.get(name) or "").strip().lower() not in OFF:
                yield about(environ, name, wrong, "it to be unset for training", severity=severity)
    if (environ.get("NVIDIA_TF32_OVERRIDE") or "").strip() == "0":
        wrong = "switches TF32 off everywhere, also where the program asks for it"
        yield about(environ, "NVIDIA_TF32_OVERRIDE", wrong, "it to be unset", severity=Severity.NOTE)
