"""GPU005: one device, two ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.observed import observed


@rule(
    "GPU005",
    "duplicate-gpu",
    Severity.ERROR,
    signatures=(r"Duplicate GPU detected", r"Multiple Ranks are using the same GPU"),
)
def check(probe: Probe) -> Iterator[Finding]:
    """Two ranks of the job use the same GPU.

    ## Why it matters
    NCCL refuses: `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device`, newer versions say `Multiple Ranks are
    using the same GPU`. With Gloo both ranks share the memory and the time of one device and nobody says so.

    ## Fix
    Call torch.cuda.set_device(LOCAL_RANK) before anything else touches CUDA, start as many ranks as the node has GPUs, and
    do not give every rank the same single CUDA_VISIBLE_DEVICES.
    """
    yield from observed(probe.seen(Kind.DUPLICATE_GPU), expected="a GPU for each rank")
