"""SCRIPT655 to SCRIPT659: state of ranks that only running the script shows: `ddpdoctor rehearse`."""

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


@cause("SCRIPT656", "parameters-never-filled", Severity.ERROR)
def parameters_never_filled() -> None:
    """A model that was moved with `to_empty` is used before its tensors have values.

    ## Why it matters
    `to_empty()` allocates memory and writes nothing. The model computes with what was in that memory: NaN, zeros, or values
    of another tensor.

    ## Fix
    Initialize every parameter and buffer after `to_empty()`, or load a checkpoint.

    ## Example
        # before
        model.to_empty(device="cuda")
        loss = model(x).mean()

        # after
        model.to_empty(device="cuda")
        model.init_weights()  # parameters and buffers
        loss = model(x).mean()
    """


@parameters_never_filled.look
def never_filled(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Tensors that are used as `to_empty` left them."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NEVER_FILLED,
        lambda o, who: f"{o.values['count']} tensors are used as `to_empty` allocated them: {o.values['names']}",
        label="nothing writes these values",
        expected="an initialization or a checkpoint",
    )


@cause("SCRIPT657", "no-sync-around-backward-only", Severity.WARNING)
def no_sync_around_backward_only() -> None:
    """`no_sync` surrounds the backward pass and not the forward pass.

    ## Why it matters
    DDP decides in the forward pass whether gradients are synchronized. They are reduced in every micro-batch: no error, but no
    communication is saved.

    ## Fix
    Put the forward pass into the same `with model.no_sync():` block.

    ## Example
        # before
        loss = model(x).mean()
        with model.no_sync():
            loss.backward()

        # after
        with model.no_sync():
            loss = model(x).mean()
            loss.backward()
    """


@no_sync_around_backward_only.look
def late_no_sync(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A forward pass that is outside of the no_sync of its backward pass."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.LATE_NO_SYNC,
        lambda o, who: "`no_sync` begins after this forward pass: its gradients are synchronized all the same",
        label="this forward pass is outside of no_sync",
        expected="both passes inside of no_sync",
    )


@cause("SCRIPT658", "collective-inside-join", Severity.ERROR)
def collective_inside_join() -> None:
    """A rank calls a collective of its own inside of `join`.

    ## Why it matters
    A rank that has no more batches repeats only the collectives of DDP. The others' own collectives then meet these: they
    hang, or add up other tensors.

    ## Fix
    Move the collective behind the `with` block.

    ## Example
        # before
        with model.join():
            for x in loader:
                loss = step(x)
                dist.all_reduce(loss)

        # after
        with model.join():
            for x in loader:
                total += step(x)
        dist.all_reduce(total)
    """


@collective_inside_join.look
def calls_in_join(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A collective inside of join that the ranks call different numbers of times."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.CALLS_IN_JOIN,
        lambda o, who: f"a collective inside of `join` is called different numbers of times: {o.values['numbers']}",
        label="join does not repeat this call",
        expected="no collective of the script inside of join",
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
