"""TOPO030: ranks of a node that cannot share the memory of their GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

VGPU = 2


@cause(
    "TOPO030",
    "cuda-ipc-blocked",
    Severity.ERROR,
    signatures=(r"cudaIpcGetMemHandle failed", r"failed to peer with device", r"cudaIpcOpenMemHandle[^\n]*failed"),
)
def cuda_ipc_blocked(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """CUDA IPC between the ranks of a node does not work.

    ## Why it matters
    "cudaIpcGetMemHandle failed : invalid argument" or "failed to peer with device 1": ranks in containers with IPC or PID
    namespaces of their own, a virtual GPU, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True with an older NCCL.

    ## Fix
    One container a node with all ranks in it (docker --ipc=host, hostIPC in Kubernetes), or NCCL_P2P_DISABLE=1; drop
    expandable_segments, or update NCCL.

    ## Source
    CUDA programming guide, interprocess communication; nvmlDeviceGetVirtualizationMode answers 2 for a virtual GPU.
    """
    gpu.answering()
    if environ.settings.get("NCCL_P2P_DISABLE") == "1":
        return
    shared = [d for d in gpu.answering() if d.virtualization_mode == VGPU]
    if len(shared) > 1 and (environ.local_world_size or 0) > 1:
        yield Finding(
            f"{len(shared)} virtual GPUs and {environ.local_world_size} ranks here: CUDA IPC between them may be blocked; "
            "expected NCCL_P2P_DISABLE=1 unless the vGPU type has peer access",
            (Evidence("gpu.devices[0].virtualization_mode", str(VGPU), "0"),),
            fix_command="export NCCL_P2P_DISABLE=1",
            severity=Severity.WARNING,
        )
