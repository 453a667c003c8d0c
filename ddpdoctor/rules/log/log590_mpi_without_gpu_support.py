"""LOG590: the backend mpi got a tensor on a GPU, and the MPI library cannot read GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG590",
    "mpi-without-gpu-support",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(r"MPI used doesn't have CUDA-aware MPI support",),
)
def mpi_without_gpu_support(log: Log) -> Iterator[Finding]:
    """The backend `mpi` got a GPU tensor, but the MPI library was built without GPU support.

    ## Why it matters
    `RuntimeError: CUDA tensor detected and the MPI used doesn't have CUDA-aware MPI support`: torch asks the MPI library whether
    it can read GPU memory, and this one cannot.

    ## Fix
    Use the backend `nccl` for tensors on GPUs (on AMD GPUs it is RCCL under the same name), started by the same `mpirun`. Only if
    MPI is required: build Open MPI with `--with-cuda`, and torch against it.

    ## Example

        RuntimeError: CUDA tensor detected and the MPI used doesn't have CUDA-aware MPI support

        # before
        dist.init_process_group("mpi")
        # after
        dist.init_process_group("nccl")

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupMPI.cpp (checkSingleTensorHelper). The answer to
    https://github.com/ROCm/pytorch/issues/453 names RCCL.
    """
    yield from ending(mpi_without_gpu_support, log)
