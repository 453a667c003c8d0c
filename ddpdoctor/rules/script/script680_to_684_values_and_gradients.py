"""SCRIPT680 to SCRIPT684: metrics, state and gradients that are about one rank although they should be about the job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT680", "metric-not-global", Severity.WARNING)
def metric_not_global(script: Script) -> Iterator[Finding]:
    """A metric is not that of the whole data set, or it counts samples twice.

    ## Why it matters
    The number that is printed is wrong by a factor of the world size, or the best checkpoint is chosen on the samples of
    rank 0. No error says so, and the number changes with the number of GPUs.

    ## Fix
    Count correct predictions and samples on each rank, all_reduce both sums, and divide afterwards. Give the loader a
    DistributedSampler, or do not reduce.

    ## Example
        # before
        accuracy = correct / len(loader.dataset)  # correct: of this rank

        # after
        totals = torch.tensor([correct, seen], device=device)
        dist.all_reduce(totals)
        accuracy = totals[0] / totals[1]
    """
    yield from history_findings(
        script,
        MistakeKind.PART_OVER_WHOLE,
        MistakeKind.COUNTED_BY_EVERY_RANK,
        MistakeKind.SUM_AS_MEAN,
        MistakeKind.BEST_OF_ONE_RANK,
    )


@cause("SCRIPT681", "state-changed-on-one-rank", Severity.ERROR)
def state_changed_on_one_rank(script: Script) -> Iterator[Finding]:
    """One rank loads or steps an optimizer, scheduler or scaler that all ranks have.

    ## Why it matters
    DDP broadcasts parameters and buffers, and nothing else. Momentum, step counts and learning rates then differ between
    ranks: all ranks apply the same gradients in different ways, and the models drift apart without an error.

    ## Fix
    Load and step on all ranks.

    ## Example
        # before
        if rank == 0:
            optimizer.load_state_dict(torch.load(path)["optimizer"])

        # after
        optimizer.load_state_dict(torch.load(path, map_location="cpu")["optimizer"])

    ## Source
    PyTorch documentation of DistributedDataParallel: the module's state_dict is broadcast in the constructor.
    """
    yield from history_findings(script, MistakeKind.STATE_LOADED_ON_ONE_RANK, MistakeKind.STEPPED_ON_ONE_RANK)


@cause("SCRIPT682", "scaled-gradients-used", Severity.ERROR)
def scaled_gradients_used(script: Script) -> Iterator[Finding]:
    """Gradients are clipped or applied while they are still multiplied by the loss scale.

    ## Why it matters
    The scale of a GradScaler begins at 65536. Clipping then reduces almost every gradient to the limit divided by the scale,
    and a direct `optimizer.step()` takes steps that are 65536 times too long.

    ## Fix
    Call `scaler.unscale_(optimizer)` before clipping, and `scaler.step(optimizer)` instead of `optimizer.step()`.

    ## Example
        # before
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

        # after
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    ## Source
    PyTorch documentation, Automatic Mixed Precision examples: Working with Unscaled Gradients.
    """
    yield from history_findings(script, MistakeKind.CLIPPED_SCALED, MistakeKind.STEPPED_SCALED)


@cause("SCRIPT683", "accumulated-gradients-reduced-again", Severity.ERROR)
def accumulated_gradients_reduced_again(script: Script) -> Iterator[Finding]:
    """Gradients that were reduced already accumulate more, and are reduced again.

    ## Why it matters
    `.grad` then holds the sum over all ranks of earlier micro batches and the own gradient of the last one. The second
    all_reduce multiplies the earlier ones by the world size.

    ## Fix
    Reduce once, after the last micro batch and before `optimizer.step()`.

    ## Example
        # before
        for micro in batch.chunk(4):
            loss_of(model(micro)).backward()
            average_gradients(model)
        optimizer.step()

        # after
        for micro in batch.chunk(4):
            loss_of(model(micro)).backward()
        average_gradients(model)
        optimizer.step()
    """
    yield from history_findings(script, MistakeKind.REDUCED_AGAIN)


@cause("SCRIPT684", "gradients-bypass-ddp", Severity.ERROR)
def gradients_bypass_ddp(script: Script) -> Iterator[Finding]:
    """Gradients of torch.autograd.grad are assigned to the parameters of a DDP model.

    ## Why it matters
    DDP averages gradients in hooks that only `backward()` runs. Gradients that `torch.autograd.grad` returns are local: the
    models of the ranks drift apart without an error.

    ## Fix
    Call `backward()`, or all_reduce the gradients before assigning them.

    ## Example
        # before
        grads = torch.autograd.grad(loss, params)
        for p, g in zip(params, grads):
            p.grad = g

        # after
        for p, g in zip(params, grads):
            dist.all_reduce(g, op=dist.ReduceOp.AVG)
            p.grad = g

    ## Source
    PyTorch documentation of DistributedDataParallel: "This module doesn't work with torch.autograd.grad()".
    """
    yield from history_findings(script, MistakeKind.GRADIENT_BYPASSES_DDP)
