"""SCRIPT650 to SCRIPT654: metrics and data that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT650", "evaluation-of-one-shard", Severity.ERROR)
def evaluation_of_one_shard() -> None:
    """An evaluation covers the samples of one rank only.

    ## Why it matters
    The data set is divided between the ranks, and the result of one rank is shown as that of all, or chooses the checkpoint.
    With 8 ranks it comes from an eighth of the samples.

    ## Fix
    Sum the counts of all ranks before the division: `dist.all_reduce(counts)`.

    ## Example
        # before
        correct, total = evaluate(model, loader)  # loader has a DistributedSampler
        if rank == 0:
            print(correct / total)

        # after
        counts = torch.tensor([correct, total])
        dist.all_reduce(counts)
        if rank == 0:
            print(counts[0] / counts[1])
    """


@evaluation_of_one_shard.look
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
        severity=Severity.WARNING,
    )


@evaluation_of_one_shard.look
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


@cause("SCRIPT651", "metric-multiplied-by-ranks", Severity.ERROR)
def metric_multiplied_by_ranks() -> None:
    """A metric is a sum over the ranks that is divided by too few samples.

    ## Why it matters
    The value is as many times too large as there are ranks: an accuracy of 340 %, or a loss that grows with the number of GPUs.

    ## Fix
    Sum the count with the value and divide by that sum. If all ranks read the whole data set, do not sum at all.

    ## Example
        # before
        dist.all_reduce(loss_sum)
        print(loss_sum / len(loader))  # the batches of one rank

        # after
        totals = torch.tensor([loss_sum, batches])
        dist.all_reduce(totals)
        print(totals[0] / totals[1])
    """


@metric_multiplied_by_ranks.look
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


@metric_multiplied_by_ranks.look
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


@cause("SCRIPT652", "gathered-rows-out-of-order", Severity.ERROR)
def gathered_rows_out_of_order() -> None:
    """Gathered predictions are compared with labels that are in another order.

    ## Why it matters
    `DistributedSampler` gives sample 0 to rank 0, sample 1 to rank 1, and so on. Concatenated parts are in the order of the
    ranks: each prediction meets the label of another sample.

    ## Fix
    Gather the labels or the indices with the predictions, or interleave: `torch.stack(parts, dim=1).flatten(0, 1)`.

    ## Example
        # before
        dist.all_gather(parts, predictions)
        accuracy = (torch.cat(parts)[: len(labels)] == labels).float().mean()

        # after
        dist.all_gather(parts, predictions)
        in_order = torch.stack(parts, dim=1).flatten(0, 1)
        accuracy = (in_order[: len(labels)] == labels).float().mean()
    """


@gathered_rows_out_of_order.look
def out_of_order(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Rows in the order of the ranks that meet rows in the order of the data set."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.ROWS_OUT_OF_ORDER,
        lambda o, who: (
            f"{o.values['size']} rows gathered rank by rank are compared with rows in the order of the data set"
        ),
        label="row i is another sample than row i of the data set",
        expected="rows in one order",
    )


@cause("SCRIPT653", "data-divided-twice", Severity.ERROR)
def data_divided_twice() -> None:
    """A sampler divides a data set that holds only the part of this rank.

    ## Why it matters
    Each rank trains on a part of its part: with 8 ranks, 7 of 8 samples are never read.

    ## Fix
    Use `shuffle=True` without a sampler, or give every rank the whole data set.

    ## Example
        # before
        data = Rows(files[rank::world])
        loader = DataLoader(data, sampler=DistributedSampler(data))

        # after
        data = Rows(files)
        loader = DataLoader(data, sampler=DistributedSampler(data))
    """


@data_divided_twice.look
def divided_again(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A data set that is divided by a slice and by a sampler."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.DIVIDED_AGAIN,
        lambda o, who: (
            f"each rank has {o.values['size']} of {o.values['whole']} samples, and the sampler divides these again"
        ),
        label="the data set is divided already",
        expected="one division",
    )


@cause("SCRIPT654", "partial-value-read", Severity.ERROR)
def partial_value_read() -> None:
    """The local part of a DTensor with a Partial placement is used as its value.

    ## Why it matters
    A Partial DTensor holds one summand on each rank. `to_local()` returns that summand: each rank sees another loss or norm, and
    conditions on it diverge.

    ## Fix
    Call `full_tensor()`, or `redistribute(placements=[Replicate()])` before `to_local()`.

    ## Example
        # before
        loss = (x @ w - y).square().sum()  # Partial
        print(loss.to_local().item())

        # after
        loss = (x @ w - y).square().sum()
        print(loss.full_tensor().item())
    """


@partial_value_read.look
def part_as_sum(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A summand that is read as the sum."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.PART_AS_SUM,
        lambda o, who: "the local part of a Partial DTensor is read as its value",
        label="this is one rank's summand",
        expected="full_tensor()",
    )
