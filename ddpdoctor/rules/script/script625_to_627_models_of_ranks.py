"""SCRIPT625 to SCRIPT627: models that differ between ranks because of what happens after DDP is created."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT625", "weights-loaded-on-one-rank", Severity.ERROR)
def weights_loaded_on_one_rank(script: Script) -> Iterator[Finding]:
    """One rank loads weights into a model that DDP has already wrapped.

    ## Why it matters
    DDP broadcasts the parameters once, when it is created. After that the other ranks keep their weights; all ranks apply
    the same updates to different models, and no error says so.

    ## Fix
    Load before `DDP(model)`, or load on all ranks.

    ## Example
        # before
        ddp = DDP(model)
        if rank == 0:
            ddp.module.load_state_dict(torch.load(path))

        # after
        if rank == 0:
            model.load_state_dict(torch.load(path))
        ddp = DDP(model)

    ## Source
    PyTorch documentation of DistributedDataParallel: parameters are broadcast in the constructor.
    """
    yield from history_findings(script, MistakeKind.LOADED_ON_ONE_RANK)


@cause("SCRIPT626", "model-updated-on-one-rank", Severity.ERROR)
def model_updated_on_one_rank(script: Script) -> Iterator[Finding]:
    """One rank updates a model, such as a moving average, that all ranks use.

    ## Why it matters
    The other ranks use the weights from the beginning. A score that is reduced over the ranks then mixes different models.

    ## Fix
    Update the model on all ranks: their parameters are equal after each step.

    ## Example
        # before
        if rank == 0:
            ema.update(ddp.module)
        score = evaluate(ema.model)

        # after
        ema.update(ddp.module)
        score = evaluate(ema.model)
    """
    yield from history_findings(script, MistakeKind.UPDATED_ON_ONE_RANK)


@cause("SCRIPT627", "model-moved-after-ddp", Severity.ERROR)
def model_moved_after_ddp(script: Script) -> Iterator[Finding]:
    """The model is moved to the CPU and back after DDP has wrapped it.

    ## Why it matters
    A parameter that changes its device gets a new gradient accumulator. The hooks of DDP belong to the old one: gradients
    are no longer averaged, and no error says so.

    ## Fix
    Leave the model on its device, or create DDP again after it is back.

    ## Example
        # before
        ddp = DDP(model.cuda())
        model.cpu()
        model.cuda()
        train(ddp)

        # after
        ddp = DDP(model.cuda())
        model.cpu()
        ddp = DDP(model.cuda())
        train(ddp)

    ## Source
    torch/csrc/autograd/variable.cpp: set_data resets the gradient accumulator if the device changes.
    """
    yield from history_findings(script, MistakeKind.MOVED_AFTER_WRAP)
