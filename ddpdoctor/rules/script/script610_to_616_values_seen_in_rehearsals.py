"""SCRIPT610 to SCRIPT616: values that only running the script shows: `ddpdoctor rehearse`."""

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


@cause("SCRIPT610", "gradients-not-the-average", Severity.ERROR)
def gradients_not_the_average(script: Script) -> Iterator[Finding]:
    """The optimizer uses a multiple of the average gradient of the ranks.

    ## Why it matters
    The learning rate is in fact multiplied by this factor, and it changes with the number of nodes. Nothing fails; the training
    diverges or is slow on another cluster.

    ## Fix
    Divide by the size of the group that summed: `dist.get_world_size()`, not `torch.cuda.device_count()`.

    With `ReduceOp.AVG` or DDP do not divide.

    ## Example
        # before
        dist.all_reduce(p.grad)
        p.grad /= torch.cuda.device_count()  # 8 GPUs per node, 2 nodes: twice the average

        # after
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    """
    yield from history_findings(script, MistakeKind.DIVIDED_BY_NODE)


@gradients_not_the_average.look
def not_the_average(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Gradients that are a multiple of the average."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.GRADIENT_SCALE,
        lambda o, who: (
            f"gradients summed over {o.values['ranks']} ranks are divided by {o.values['divisor']}: "
            f"the optimizer uses {o.values['factor']} times the average"
        ),
        label="the sum is not divided by its number of ranks",
        expected="the average of the gradients of all ranks",
    )


@cause("SCRIPT611", "loss-divided-by-global-sum", Severity.ERROR)
def loss_divided_by_global_sum(script: Script) -> Iterator[Finding]:
    """A loss is divided by a count of all ranks, although DDP averages the gradients.

    ## Why it matters
    DDP divides the sum of the gradients by the number of ranks. A loss that is normalized over all ranks already is divided
    twice: the update is as many times smaller as there are ranks.

    ## Fix
    Multiply the loss by the number of ranks, or divide by the average count per rank.

    ## Example
        # before
        dist.all_reduce(tokens)
        loss = loss_sum / tokens
        loss.backward()  # model is a DDP model

        # after
        dist.all_reduce(tokens)
        loss = loss_sum * dist.get_world_size() / tokens
        loss.backward()

    ## Source
    torch/nn/parallel/distributed.py: "the gradients from each node are averaged".
    """
    yield from history_findings(script, MistakeKind.LOSS_DIVIDED_BY_SUM)


@loss_divided_by_global_sum.look
def divided_by_global_sum(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A loss that is divided by a sum over the ranks, before DDP averages."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.DIVIDED_BY_SUM,
        lambda o, who: (
            f"the loss is divided by a sum over the ranks, and DDP averages over {o.values['ranks']} ranks again"
        ),
        label="the gradient gets too small",
        expected="the loss times the number of ranks",
    )


@cause("SCRIPT612", "running-total-reduced-in-place", Severity.ERROR)
def running_total_reduced_in_place(script: Script) -> Iterator[Finding]:
    """A tensor that holds a sum over the ranks is added to and summed again.

    ## Why it matters
    The first all_reduce replaced the local total by that of all ranks. The second one counts it once per rank: the metric grows
    with each report, and no error says so.

    ## Fix
    Reduce a copy: `total = local.clone()`, `dist.all_reduce(total)`.

    Or set the tensor to zero after each reduction.

    ## Example
        # before
        totals += batch_totals
        dist.all_reduce(totals)

        # after
        totals += batch_totals
        summed = totals.clone()
        dist.all_reduce(summed)
    """
    yield from history_findings(script, MistakeKind.TOTAL_REDUCED_AGAIN)


@running_total_reduced_in_place.look
def total_reduced_again(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A sum over the ranks that grows and is summed again."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.REDUCED_AGAIN,
        lambda o, who: "a running total is summed over the ranks again, together with earlier sums",
        label="this tensor already holds the sum of all ranks",
        expected="a copy, or zeros after each sum",
    )


@cause("SCRIPT613", "mean-of-unequal-parts", Severity.WARNING)
def mean_of_unequal_parts() -> None:
    """The ranks average their local means, although each one has another number of samples.

    ## Why it matters
    A rank with few samples counts as much as one with many. The result depends on the number of ranks and is not the mean
    of the data set.

    ## Fix
    Reduce the sum and the count, then divide.

    ## Example
        # before
        accuracy = torch.tensor(hits / seen, device=device)
        dist.all_reduce(accuracy)
        accuracy /= dist.get_world_size()

        # after
        both = torch.tensor([hits, seen], device=device)
        dist.all_reduce(both)
        accuracy = both[0] / both[1]
    """


@mean_of_unequal_parts.look
def unequal_parts(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ratios with other divisors on each rank that are reduced."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.RATIO_MEAN,
        lambda o, who: f"the ranks average their ratios, but divided by different counts: {o.values['divisors']}",
        label="each rank divides by its own count",
        expected="one division after both sums are reduced",
    )


@cause("SCRIPT614", "evaluated-models-differ", Severity.WARNING)
def evaluated_models_differ(script: Script) -> Iterator[Finding]:
    """All ranks evaluate a model whose parameters or buffers differ between ranks.

    ## Why it matters
    The metric that the ranks reduce mixes different models, and the checkpoint of rank 0 is another model than the one
    that was measured. Usual reasons: an exponential moving average that only rank 0 updates, and statistics of BatchNorm with
    `broadcast_buffers=False`.

    ## Fix
    Update the average on all ranks, or broadcast it before the evaluation.

    For BatchNorm keep `broadcast_buffers=True`, use SyncBatchNorm, or average the buffers.

    ## Example
        # before
        if rank == 0:
            ema.update(model.module)
        score = evaluate(ema)  # on all ranks

        # after
        ema.update(model.module)
        score = evaluate(ema)
    """
    yield from history_findings(script, MistakeKind.UPDATED_ON_ONE_RANK, MistakeKind.BUFFERS_APART)


@evaluated_models_differ.look
def evaluated_apart(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Models that differ between ranks while all ranks evaluate them."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.EVALUATED_APART,
        lambda o, who: (
            f"{who} evaluate a {o.values['model']}, and {o.values['count']} of its {o.values['what']} differ between ranks"
        ),
        label="the ranks evaluate different models",
        expected="equal parameters and buffers on all ranks",
    )


@cause("SCRIPT615", "checkpoint-keys-do-not-match", Severity.WARNING)
def checkpoint_keys_do_not_match() -> None:
    """`load_state_dict(state, strict=False)` ignores every key of the state.

    ## Why it matters
    The model keeps its random weights, and no error says so. The usual reason is the prefix `module.` of a DDP model or
    `_orig_mod.` of a compiled one.

    ## Fix
    Save `model.module.state_dict()`, or remove the prefix before loading.

    Use `strict=True` (the default) or check the returned `missing_keys`.

    ## Example
        # before
        torch.save(ddp.state_dict(), path)
        net.load_state_dict(torch.load(path), strict=False)

        # after
        torch.save(ddp.module.state_dict(), path)
        net.load_state_dict(torch.load(path))
    """


@checkpoint_keys_do_not_match.look
def nothing_loaded(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No key of a state fits the module, and strict=False hides it."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NOTHING_LOADED,
        lambda o, who: (
            f"load_state_dict loads nothing: none of {o.values['count']} keys fits, "
            f"such as {o.values['key']} for {o.values['wanted']}"
        ),
        label="strict=False ignores all keys",
        expected="keys of the module",
    )


@cause("SCRIPT616", "samples-repeated-by-workers", Severity.ERROR)
def samples_repeated_by_workers(script: Script) -> Iterator[Finding]:
    """Every worker of a DataLoader reads the whole stream of its rank.

    ## Why it matters
    An IterableDataset is copied into each worker. Without a division by `get_worker_info()` every sample is read once per
    worker: an epoch is as many times too long, and batches repeat.

    ## Fix
    Divide the stream by rank and worker in `__iter__`: `number = rank * info.num_workers + info.id`.

    ## Example
        # before
        def __iter__(self):
            yield from self.records[rank::world_size]

        # after
        def __iter__(self):
            info = get_worker_info()
            yield from self.records[rank * info.num_workers + info.id :: world_size * info.num_workers]

    ## Source
    torch/utils/data/dataset.py: IterableDataset, "each worker process has a different copy of the dataset object".
    """
    yield from history_findings(script, MistakeKind.STREAM_NOT_SPLIT_BY_WORKER)


@samples_repeated_by_workers.look
def repeated_by_workers(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Every worker of a loader yields the same records."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.WORKER_COPIES,
        lambda o, who: f"each of {o.values['workers']} workers yields the same samples",
        label="an IterableDataset runs in each worker",
        expected="get_worker_info() in __iter__",
    )
