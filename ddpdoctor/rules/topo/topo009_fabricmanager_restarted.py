"""TOPO009: NVLink SHARP fails after a restart of the fabric manager, as NCCL reports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "TOPO009",
    "fabricmanager-restarted",
    Severity.ERROR,
    candidates=("TOPO009", "TOPO007", "TOPO010"),
    signatures=(r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure",),
)
def fabricmanager_restarted() -> None:
    """The fabric manager was restarted, but the GPUs were not reset.

    ## Why it matters
    CUDA works, and NCCL works without NVLink SHARP. Only multicast fails, until the GPUs are reset:
    `transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'`.

    ## Fix
    Drain the node, stop all CUDA processes and reset all GPUs together (`nvidia-smi -r`, as root), or reboot. Until then set
    NCCL_NVLS_ENABLE=0 for the job.

    ## Example
    In the log:

        transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'

    On that node, as root, with no CUDA process running:

        nvidia-smi -r

    Until then, on all nodes:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 8 train.py
    """


MULTICAST = (r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure",)


@fabricmanager_restarted.look
def multicast_failed(log: Log) -> Iterator[Finding]:
    """The setup of NVLink SHARP fails, for one of several reasons with the same message."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, MULTICAST) if "out of memory" not in line.text]
    if lines:
        undetermined = (
            "Either the fabric manager was restarted without a reset of the GPUs (TOPO009), it is not running (TOPO007), "
            "or the partition has no multicast (TOPO010); set NCCL_NVLS_ENABLE=0 to run the job without it"
        )
        yield finding_of(log, lines, "NVLink SHARP could not be set up", undetermined, blames_speaker=True)
