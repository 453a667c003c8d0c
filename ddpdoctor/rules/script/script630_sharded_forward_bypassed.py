"""SCRIPT630: layers of a sharded model that are used without its forward()."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT630", "sharded-forward-bypassed", Severity.ERROR)
def sharded_forward_bypassed(script: Script) -> Iterator[Finding]:
    """A method other than forward() uses the layers of a model that fully_shard has sharded.

    ## Why it matters
    FSDP gathers the parameters in the hooks of forward(). In other methods the layers hold shards:
    `got mixed torch.Tensor and DTensor`.

    ## Fix
    Call `register_fsdp_forward_method(model, "encode")`, or move the code into forward().

    ## Example
        # before
        fully_shard(model)
        loss = model.loss(batch)

        # after
        fully_shard(model)
        register_fsdp_forward_method(model, "loss")
        loss = model.loss(batch)

    ## Source
    PyTorch documentation of torch.distributed.fsdp.register_fsdp_forward_method.
    """
    yield from history_findings(script, MistakeKind.FORWARD_BYPASSED)
