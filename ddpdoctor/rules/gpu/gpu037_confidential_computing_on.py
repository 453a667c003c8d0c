"""GPU037: encrypted transfers."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.gpu.xids import logged


@rule("GPU037", "confidential-computing-on", Severity.WARNING, signatures=(r"NVRM: Xid [^\n]*: 151\b",))
def check(gpu: Gpu) -> Iterator[Finding]:
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
    found = tuple(logged(gpu, "GPU037"))
    yield from found
    if gpu.confidential_computing is None and not found:
        not_here("the driver says nothing of confidential computing")
    if gpu.confidential_computing:
        yield Finding(
            "confidential computing is on; expected off for a job that does not need it",
            (Evidence("gpu.confidential_computing", "true", "false"),),
        )
