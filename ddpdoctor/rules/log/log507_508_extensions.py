"""LOG507, LOG508: compiled extensions that do not fit the torch that is installed, or that could not be compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending, retitled, shortened

__all__: list[str] = []

_MODULE = re.compile(r"(?:^|[/' :])(?P<module>[A-Za-z]\w{0,60})(?:\.[\w-]{1,60})?\.so[\w.]{0,20}: undefined symbol: ")
_OF_NVIDIA = re.compile(r"lib(cu\w+|nv\w+)$")
_PACKAGES = (
    ("flash_attn", "flash-attn"),
    ("transformer_engine", "transformer-engine[pytorch]"),
    ("causal_conv1d", "causal-conv1d"),
    ("selective_scan", "mamba-ssm"),
    ("_scatter", "torch-scatter"),
    ("_sparse", "torch-sparse"),
    ("_cluster", "torch-cluster"),
    ("torchaudio", "torchaudio"),
    ("xformers", "xformers"),
    ("deepspeed", "deepspeed"),
)
"""Part of a module's name, and the package that provides it."""
_MISSING = re.compile(r"fatal error: (?P<file>[\w./+-]{1,200}): No such file")
_PROVIDERS = (
    ("Python.h", "Install the headers of this Python on every node", "sudo apt-get install python3-dev"),
    ("cusparse.h", "Install the headers of the CUDA libraries", "conda install -c nvidia cuda-libraries-dev"),
    ("cublas_v2.h", "Install the headers of the CUDA libraries", "conda install -c nvidia cuda-libraries-dev"),
    ("cusolverDn.h", "Install the headers of the CUDA libraries", "conda install -c nvidia cuda-libraries-dev"),
    ("cuda_runtime", "Install the CUDA toolkit that torch was built with and set CUDA_HOME to it", None),
    ("curand_kernel.h", "Install the headers of the CUDA libraries", "conda install -c nvidia cuda-libraries-dev"),
)


@cause(
    "LOG507",
    "extension-abi-mismatch",
    Severity.ERROR,
    stage=CausalStage.IMPORT,
    yields_to=("VERSION001", "LOG019"),
    signatures=(
        r"\.so[\w.]{0,20}: undefined symbol:",
        r"\bundefined symbol: _Z\w{6,}",
        r"\blib(?:cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvJitLink)[\w-]{0,20}\.so[\w.]{0,20}: "
        r"cannot open shared object file",
        r"version `(?:GLIBCXX|GLIBC|CXXABI)_[\d.]+' not found",
        r"\blib(?:cupti|nccl|mpi|nvToolsExt|tbb|openblas)[\w-]{0,20}\.so[\w.]{0,20}: cannot open shared object file",
        r"CUDA Setup failed despite (?:GPU being available|CUDA being available)",
    ),
)
def extension_abi_mismatch(log: Log) -> Iterator[Finding]:
    """A compiled extension was built for another torch or CUDA version.

    ## Why it matters
    Every rank fails at the import, because the extension calls a function that the installed torch does not have under
    that name: `ImportError: …/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c105Error…`.
    `libcudart.so.11.0: cannot open shared object file` means that the extension, or torch itself, needs another CUDA
    version than the installed one.

    ## Fix
    Reinstall the extension against the installed torch: `pip install --no-build-isolation --no-cache-dir
    --force-reinstall --no-deps NAME`, or install the wheel whose name contains this torch, CUDA, Python and cxx11 ABI.

    For `libcu…` and `libnv…` libraries, unset LD_LIBRARY_PATH, which makes another CUDA override the one that torch installed.

    ## Example

        ImportError: …/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2E…

        # before: flash-attn was built for torch 2.4
        pip install --upgrade torch==2.6
        # after
        pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps flash-attn

    ## Source
    Confirmed in https://github.com/Dao-AILab/flash-attention/issues/853 and /975 (the wheel with cxx11abiFALSE), and in
    https://github.com/huggingface/open-r1/issues/684 (an older flash-attn for torch 2.6).
    Also in https://github.com/Dao-AILab/flash-attention/issues/854 and /950, and in
    https://github.com/haotian-liu/LLaVA/issues/1366 (`--no-build-isolation --no-cache-dir`).
    """
    for found in ending(extension_abi_mismatch, log):
        lines = matching_lines(log, extension_abi_mismatch.rule.signatures)
        parsed = next((m for line in lines if (m := _MODULE.search(line.text)) is not None), None)
        yield found if parsed is None else _with_package(found, parsed["module"])


def _with_package(found: Finding, module: str) -> Finding:
    """With what to reinstall, as far as the name of the library shows it."""
    if _OF_NVIDIA.match(module):
        text = f"Start the ranks without LD_LIBRARY_PATH on every node: it loads {module} of another CUDA"
        return replace(found, fix=text, fix_command="unset LD_LIBRARY_PATH")
    package = next((name for part, name in _PACKAGES if part in module), None)
    if package is None:
        text = f"Reinstall the package that provides {module}, built against the installed torch, on every node"
        return replace(found, fix=text)
    command = f"pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps {package}"
    return replace(found, fix=f"Reinstall {package} against the installed torch, on every node", fix_command=command)


@cause(
    "LOG508",
    "extension-build-failed",
    Severity.ERROR,
    stage=CausalStage.IMPORT,
    signatures=(
        r"Error building extension '",
        r"Error compiling objects for extension",
        r"Command '\['ninja', ",
        r"The detected CUDA version \([\d.]+\) mismatches the version that was used to compile",
        r"does not match the version torch was compiled with [\d.]+, unable to compile",
        r"CUDA_HOME (?:environment variable is not set|does not exist)",
        r"Ninja is required to load C\+\+ extensions",
        r"#error -- unsupported GNU version!",
        r"nvcc fatal {1,3}: Unsupported gpu architecture ",
        r"object has no attribute 'ds_opt_",
        r"fatal error: (?:cuda_runtime|cuda|cublas_v2|cudnn|nccl|mpi|Python)\.h: No such file",
    ),
)
def extension_build_failed(log: Log) -> Iterator[Finding]:
    """A C++ or CUDA extension could not be compiled when the job started.

    ## Why it matters
    `RuntimeError: Error building extension 'cpu_adam'` ends every rank; the compiler's own error is often hundreds of lines
    above it. Later ranks report `.so: cannot open shared object file`, a consequence.

    ## Fix
    Read the compiler's first `error:` line above the traceback: a missing header, a compiler that nvcc does not support, or a
    CUDA toolkit with another version than torch's. Then remove the half-built files: `rm -rf ~/.cache/torch_extensions`.

    ## Example

        /envs/include/pybind11/detail/common.h:12:10: fatal error: Python.h: No such file or directory
        RuntimeError: Error building extension 'cpu_adam'

        # before: the nodes do not have the Python headers
        deepspeed train.py
        # after, on every node
        sudo apt-get install python3-dev && rm -rf ~/.cache/torch_extensions
    """
    compilers = [line for line, _ in context_lines(log, "compiler")]
    for found in ending(extension_build_failed, log):
        yield _with_compiler(log, found, compilers[0]) if compilers else found


def _with_compiler(log: Log, found: Finding, line: LogLine) -> Finding:
    """With the compiler's first error, which is the reason."""
    error = shortened(line.text.strip())
    place = log.place(line.source, line.number)
    explained = retitled(
        replace(found, quote=error, evidence=(Evidence(place, error), *found.evidence)),
        "An extension could not be compiled",
    )
    missing = _MISSING.search(line.text)
    known = None if missing is None else next((p for p in _PROVIDERS if p[0] in missing["file"]), None)
    if missing is None:
        return explained
    if known is None:
        text = f"Install the development package that provides {missing['file']}, on every node"
        return replace(explained, fix=f"{text}, and remove ~/.cache/torch_extensions")
    return replace(explained, fix=f"{known[1]}, and remove ~/.cache/torch_extensions", fix_command=known[2])
