"""SCRIPT625: weights that only one rank loads after DDP is created."""

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
