"""TOPO009: NVLink SHARP that fails since the fabric manager was restarted, as NCCL reports it."""

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
    """The fabric manager was restarted and the GPUs were not reset.

    ## Why it matters
    CUDA works, and so does NCCL without NVLink SHARP; only multicast fails: "transport/nvls.cc:244 NCCL WARN Cuda failure 1
    'invalid argument'", until the GPUs are reset.

    ## Fix
    Drain the node, stop all CUDA processes and reset all GPUs together (nvidia-smi -r), or reboot. Until then:
    NCCL_NVLS_ENABLE=0.
    """


MULTICAST = (r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure",)


@fabricmanager_restarted.look
def multicast_failed(log: Log) -> Iterator[Finding]:
    """NVLink SHARP fails at its set-up, for one of a few reasons that look alike from here."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, MULTICAST) if "out of memory" not in line.text]
    if lines:
        undetermined = (
            "Undetermined: the fabric manager was restarted and the GPUs were not reset (TOPO009), it does not run (TOPO007), "
            "or this machine's partition has no multicast (TOPO010); with NCCL_NVLS_ENABLE=0 the job runs without it"
        )
        yield finding_of(log, lines, "NVLink SHARP could not be set up", undetermined, blames_speaker=True)
