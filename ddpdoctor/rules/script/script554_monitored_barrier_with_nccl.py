"""SCRIPT554: monitored_barrier on an NCCL group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import point
from ddpdoctor.rules.script.script_questions import argument, backends, has_more
from ddpdoctor.scripts.syntax.module import modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause(
    "SCRIPT554",
    "monitored-barrier-with-nccl",
    Severity.ERROR,
    signatures=(r"monitored_barrier is only implemented for GLOO backend",),
)
def monitored_barrier_with_nccl(script: Script) -> Iterator[Finding]:
    """monitored_barrier is called on an NCCL group.

    ## Why it matters
    It fails with `ValueError: monitored_barrier is only implemented for GLOO backend.`

    ## Fix
    Create a Gloo group on all ranks, and pass it: `dist.monitored_barrier(control)`.

    ## Example
        # before
        dist.init_process_group("nccl")
        dist.monitored_barrier()
        # ValueError: monitored_barrier is only implemented for GLOO backend.

        # after
        dist.init_process_group("nccl")
        control = dist.new_group(backend="gloo")
        dist.monitored_barrier(control)

    ## Source
    torch/distributed/distributed_c10d.py (monitored_barrier).
    """
    for module in modules(script):
        if backends(module) != {"nccl"}:
            continue
        for call in module.calls("dist.monitored_barrier"):
            if argument(call, 0, "group") is None and not has_more(call):
                yield point(
                    module,
                    call,
                    "monitored_barrier() runs on the default group, whose backend is nccl",
                    "a group with backend gloo",
                    label="ValueError: only for Gloo",
                )


@monitored_barrier_with_nccl.look
def refused(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A call that the backend does not have."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.REFUSED,
        lambda o, who: f"{o.values['op']}() does not exist for the nccl backend",
        label="raises with nccl",
        expected="a call that nccl has",
    )
