"""GPU037: encrypted transfers."""

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
    signatures=(r"NVRM: Xid [^\n]*: 151\b",),
    xids=XidKind.CONFIDENTIAL_COMPUTING_ON,
)
def confidential_computing_on(gpu: Gpu) -> Iterator[Finding]:
    """Confidential computing is on.

    ## Why it matters
    What goes to and from the GPUs is encrypted and copied once more, and peer access is limited: slower, and with other
    failures than usual.

    ## Fix
    Switch it off where the job does not need it.

    ## Source
    nvmlSystemGetConfComputeState, ccFeature.
    """
    gpu.answering()
    found = tuple(logged(gpu, XidKind.CONFIDENTIAL_COMPUTING_ON))
    yield from found
    if gpu.confidential_computing is None and not found:
        not_here("the driver says nothing of confidential computing")
    if gpu.confidential_computing:
        yield Finding(
            "confidential computing is on; expected off for a job that does not need it",
            (Evidence("gpu.confidential_computing", "true", "false"),),
        )
