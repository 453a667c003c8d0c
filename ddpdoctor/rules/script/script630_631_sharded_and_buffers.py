"""SCRIPT630 and SCRIPT631: models that are used while their parameters or buffers are not those of all ranks."""

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


@cause("SCRIPT631", "evaluation-buffers-differ", Severity.WARNING)
def evaluation_buffers_differ(script: Script) -> Iterator[Finding]:
    """A model with BatchNorm is evaluated while each rank has its own running statistics.

    ## Why it matters
    DDP broadcasts buffers in the forward pass of training, unless broadcast_buffers is False. The ranks then evaluate different
    networks, and the checkpoint contains the statistics of rank 0 only.

    ## Fix
    Average or broadcast the buffers before evaluation, or leave broadcast_buffers at its default.

    ## Example
        # before
        ddp = DDP(model, broadcast_buffers=False)
        train(ddp)
        ddp.eval()
        score = evaluate(ddp)

        # after
        ddp = DDP(model, broadcast_buffers=False)
        train(ddp)
        for b in ddp.buffers():
            dist.broadcast(b, src=0)
        ddp.eval()
        score = evaluate(ddp)

    ## Source
    PyTorch documentation of DistributedDataParallel, broadcast_buffers.
    """
    yield from history_findings(script, MistakeKind.BUFFERS_APART)
