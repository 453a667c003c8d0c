"""TOPO030: ranks of a node that cannot share the memory of their GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

VGPU = 2


@cause(
    "TOPO030",
    "cuda-ipc-blocked",
    Severity.ERROR,
    signatures=(
        r"cudaIpcGetMemHandle failed",
        r"failed to peer with device",
        r"cudaIpcOpenMemHandle[^\n]{0,300}failed",
    ),
)
def cuda_ipc_blocked(environ: Environ, gpu: Gpu) -> Iterator[Finding]:
    """CUDA IPC between the ranks of a node does not work.

    ## Why it matters
    NCCL fails with `cudaIpcGetMemHandle failed : invalid argument` or `failed to peer with device 1`. The ranks run in containers
    with separate IPC or PID namespaces, the GPU is virtual, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is set with an
    older NCCL.

    ## Fix
    Run all ranks of a node in one container (docker `--ipc=host`, `hostIPC: true` in Kubernetes), or set NCCL_P2P_DISABLE=1;
    remove expandable_segments, or update NCCL.

    ## Example
    In the log:

        NCCL WARN Cuda failure 'invalid argument' cudaIpcGetMemHandle failed

    The command that starts the container, on every node:

        # before
        docker run --gpus all IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all --ipc=host IMAGE torchrun --nproc-per-node 8 train.py

    ## Source
    CUDA programming guide, interprocess communication; nvmlDeviceGetVirtualizationMode returns 2 for a virtual GPU.
    """
    if all(device.virtualization_mode is None for device in gpu.answering()):
        not_here("no GPU reports whether it is virtual")
    if environ.settings.get("NCCL_P2P_DISABLE") == "1":
        return
    shared = [d for d in gpu.answering() if d.virtualization_mode == VGPU]
    if len(shared) > 1 and (environ.local_world_size or 0) > 1:
        yield Finding(
            f"CUDA IPC may be blocked between the {environ.local_world_size} ranks on {len(shared)} virtual GPUs",
            (Evidence("gpu.devices[0].virtualization_mode", str(VGPU), "0"),),
            fix_command="export NCCL_P2P_DISABLE=1",
            severity=Severity.WARNING,
        )
