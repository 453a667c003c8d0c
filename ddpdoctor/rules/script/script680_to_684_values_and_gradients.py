"""SCRIPT680 to SCRIPT684: metrics, state and gradients that are about one rank although they should be about the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT680", "metric-not-global", Severity.WARNING)
def metric_not_global(script: Script) -> Iterator[Finding]:
    """A metric is not that of the whole data set, or it counts samples twice.

    ## Why it matters
    The number that is printed is wrong by a factor of the world size, or the best checkpoint is chosen on the samples of
    rank 0. No error says so, and the number changes with the number of GPUs.

    ## Fix
    Count on each rank, all_reduce the sums, and divide afterwards.

    A loader without a DistributedSampler gives all ranks the whole data set: do not reduce then.

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
        MistakeKind.TOTAL_OVER_PART,
        MistakeKind.COUNTED_BY_EVERY_RANK,
        MistakeKind.SUM_AS_MEAN,
        MistakeKind.BEST_OF_ONE_RANK,
    )


@metric_not_global.look
def one_shard(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A result of one rank's samples that is shown or that decides."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.ONE_SHARD,
        lambda o, who: (
            f"the result of {who}'s own samples {o.values['how']}: "
            f"{o.values['samples']} of {o.values['size']} samples of the evaluation"
        ),
        label="it covers the samples of this rank only",
        expected="a value that all ranks have reduced",
    )


@metric_not_global.look
def shard_over_whole(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A count of one rank that is divided by the size of the whole data set."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SHARD_OVER_WHOLE,
        lambda o, who: (
            f"the count of one rank's samples is divided by {o.values['divisor']}, the size of the whole data set"
        ),
        label="the count covers one rank, the divisor all",
        expected="a sum over the ranks, or the number of samples of this rank",
    )


@metric_not_global.look
def sum_of_whole(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A sum over ranks that all read the whole data set."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SUM_OF_WHOLE,
        lambda o, who: (
            f"all {o.values['ranks']} ranks read the whole data set; their sum is divided by {o.values['divisor']}"
        ),
        label="the sum counts each sample once per rank",
        expected="a loader that divides the samples, or no sum",
    )


@metric_not_global.look
def sum_not_divided(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A sum over the ranks that is divided by what one rank has read."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SUM_NOT_DIVIDED,
        lambda o, who: (
            f"a sum over {o.values['ranks']} ranks is divided by {o.values['divisor']}, which is what one rank has read"
        ),
        label="the sum covers all ranks, the divisor one",
        expected="the sum of all ranks' counts",
    )


@cause("SCRIPT681", "state-changed-on-one-rank", Severity.ERROR)
def state_changed_on_one_rank(script: Script) -> Iterator[Finding]:
    """One rank loads, steps or sets state that all ranks must have alike.

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
    yield from history_findings(
        script,
        MistakeKind.STATE_LOADED_ON_ONE_RANK,
        MistakeKind.STEPPED_ON_ONE_RANK,
        MistakeKind.EPOCH_ON_ONE_RANK,
        MistakeKind.RATE_BY_RANK,
    )


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
