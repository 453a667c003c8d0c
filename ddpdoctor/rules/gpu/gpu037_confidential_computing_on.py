"""GPU037: confidential computing, which encrypts transfers."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged


@cause(
    "GPU037",
    "confidential-computing-on",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 151\b",),
    xids=XidKind.CONFIDENTIAL_COMPUTING_ON,
)
def confidential_computing_on(gpu: Gpu) -> Iterator[Finding]:
    """Confidential computing is on.

    ## Why it matters
    Transfers to and from the GPUs are encrypted and copied once more, and peer access is limited. The job is slower and can fail
    in unusual ways.

    ## Fix
    Turn confidential computing off on nodes where the job does not need it.

    ## Example
    ddpdoctor's message:

        confidential computing is on

    On that node:

        nvidia-smi conf-compute -f

    ## Source
    nvmlSystemGetConfComputeState, ccFeature.
    """
    gpu.answering()
    from_log = tuple(logged(gpu, XidKind.CONFIDENTIAL_COMPUTING_ON))
    yield from from_log
    if gpu.confidential_computing is None and not from_log:
        not_here("the driver does not report the state of confidential computing")
    if gpu.confidential_computing:
        yield Finding(
            "confidential computing is on",
            (Evidence("gpu.confidential_computing", "true", "false"),),
        )
