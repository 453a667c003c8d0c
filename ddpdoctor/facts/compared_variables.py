"""Which variables should have the same value on all nodes of a job."""

from __future__ import annotations

from ddpdoctor.facts.variables import is_secret

__all__ = ["is_compared"]

COMPARED_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "GLOO_",
    "CUDA_",
    "UCX_",
    "OMP_",
    "MKL_",
    "KMP_",
    "FI_",
    "RCCL_",
    "HSA_",
    "NVSHMEM_",
    "USE_LIBUV",
    "LD_PRELOAD",
)
"""Variables with these prefixes configure the job's processes; they should be equal on all nodes."""
OF_ONE_NODE = (
    "NCCL_HOSTID",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_LOGS_OUT",
    "CUDA_CACHE_PATH",
)
"""Variables that may differ per node."""


def is_compared(name: str) -> bool:
    """Whether a variable should have the same value on all nodes. Values that may be secrets are never compared or sent."""
    return name.startswith(COMPARED_PREFIXES) and name not in OF_ONE_NODE and not is_secret(name)
