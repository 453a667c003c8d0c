"""SCRIPT655 and SCRIPT659: state of ranks that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT655", "buffers-updated-per-rank", Severity.WARNING)
def buffers_updated_per_rank() -> None:
    """A module updates its buffers from the batch of one rank.

    ## Why it matters
    DDP broadcasts the buffers of rank 0 before each forward pass: what the other ranks have added is lost. Without the
    broadcast the replicas differ.

    ## Fix
    Reduce the statistics over the ranks before they are added to the buffer.

    ## Example
        # before
        self.counts.mul_(decay).add_(batch_counts, alpha=1 - decay)

        # after
        dist.all_reduce(batch_counts)
        self.counts.mul_(decay).add_(batch_counts, alpha=1 - decay)
    """


@buffers_updated_per_rank.look
def buffers_lost(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Buffers that each rank updates in its own way."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.BUFFERS_LOST,
        lambda o, who: (
            f"buffer `{o.values['name']}` gets other values on each rank"
            + (", and DDP keeps those of rank 0" if "broadcasts" in o.values else "")
        ),
        label="computed from this rank's batch only",
        expected="statistics of all ranks",
    )


@cause("SCRIPT659", "optimizer-state-on-some-ranks", Severity.ERROR)
def optimizer_state_on_some_ranks() -> None:
    """Only some ranks load the state of the optimizer.

    ## Why it matters
    DDP broadcasts parameters, never the state of an optimizer. With other momenta, the replicas drift apart from the first step,
    without an error.

    ## Fix
    Load the checkpoint on every rank: `torch.load(path, map_location="cpu")`.

    ## Example
        # before
        if rank == 0:
            optimizer.load_state_dict(checkpoint["optimizer"])

        # after
        optimizer.load_state_dict(checkpoint["optimizer"])
    """


@optimizer_state_on_some_ranks.look
def state_on_some(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A state that some ranks load, before parameters differ."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.STATE_ON_SOME,
        lambda o, who: (
            f"not all ranks load the state of the optimizer; parameters differ after step {o.values['step']}"
        ),
        label="the other ranks keep an empty state",
        expected="the same state on all ranks",
    )
