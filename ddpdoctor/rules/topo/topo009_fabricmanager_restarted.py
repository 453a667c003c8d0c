"""TOPO009: NVLink SHARP that fails since the fabric manager was restarted, as NCCL reports it."""

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
