"""SCRIPT652 to SCRIPT654: metrics and data that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT652", "gathered-rows-out-of-order", Severity.ERROR)
def gathered_rows_out_of_order() -> None:
    """Gathered predictions are compared with labels that are in another order.

    ## Why it matters
    `DistributedSampler` gives sample 0 to rank 0, sample 1 to rank 1, and so on. Concatenated parts are in the order of the
    ranks: each prediction gets the label of another sample.

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
