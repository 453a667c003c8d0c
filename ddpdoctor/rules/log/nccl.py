"""LOG502: NCCL's errors whose reason only NCCL's own log would tell."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule(
    "LOG502",
    "nccl-error-without-reason",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"unhandled (cuda|system) error",
        r"ncclUnhandledCudaError",
        r"ncclSystemError",
        r"internal error - please report this",
        r"ncclInternalError",
        r"ncclInvalid(Usage|Argument)",
        r"NCCL error[^\n]*, invalid (usage|argument)\b",
    ),
)
def nccl_error_without_reason() -> None:
    """NCCL failed, and the log does not hold its reason.

    ## Why it matters
    "unhandled cuda error", "unhandled system error" or "internal error" only name the class: shared memory that is too small,
    peer access that does not work, a network interface that is not there, GPU memory that ran out, or a peer that ended first.
    NCCL prints the reason as "NCCL WARN", which is shown with NCCL_DEBUG=WARN only.

    ## Fix
    Start once more with NCCL_DEBUG=WARN and give that log to `ddpdoctor triage`; `ddpdoctor check -- LAUNCH` looks for the usual
    reasons before the job.
    """
