"""TOPO009, TOPO010: NVLink SHARP that cannot be used, as NCCL reports it."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule(
    "TOPO009",
    "fabricmanager-restarted",
    Severity.ERROR,
    signatures=(r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure",),
)
def fabricmanager_restarted() -> None:
    """The fabric manager was restarted and the GPUs were not reset.

    ## Why it matters
    CUDA works, and so does NCCL without NVLink SHARP; only multicast fails: "transport/nvls.cc:244 NCCL WARN Cuda failure 1
    'invalid argument'", until the GPUs are reset.

    ## Fix
    Drain the node, stop all CUDA processes and reset all GPUs together (nvidia-smi -r), or reboot. Until then:
    NCCL_NVLS_ENABLE=0.
    """


@rule("TOPO010", "nvls-unavailable", Severity.ERROR, signatures=(r"Failed to bind NVLink SHARP",))
def nvls_unavailable() -> None:
    """NVLink SHARP multicast cannot be used on this machine.

    ## Why it matters
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401" under "unhandled cuda error": a
    fabric manager or partition that does not hold all GPUs, a container without the IMEX channel, or a MIG slice.

    ## Fix
    NCCL_NVLS_ENABLE=0 gets the job running. Then check the fabric manager and the partition on the host.
    """
