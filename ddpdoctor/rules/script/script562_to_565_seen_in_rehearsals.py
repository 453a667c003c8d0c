"""SCRIPT562 to SCRIPT565: mistakes that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT562", "collective-list-length-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_list_length_mismatch(script: Script) -> Iterator[Finding]:
    """The ranks pass lists of different lengths to one collective.

    ## Why it matters
    `broadcast_object_list` sends one size for each object: a rank with a longer or shorter list reads another tensor than
    the one that is sent. It hangs, or fails with `UnpicklingError` or a size error of the backend.

    ## Fix
    Make the list equally long on all ranks: `objects = [value] if rank == 0 else [None]`.

    ## Example
        # before
        objects = [config, names] if rank == 0 else [None]
        dist.broadcast_object_list(objects, src=0)
        # rank 1: op.preamble.length <= op.nbytes. 16 vs 8

        # after
        objects = [config, names] if rank == 0 else [None, None]
        dist.broadcast_object_list(objects, src=0)

    ## Source
    torch/distributed/distributed_c10d.py, broadcast_object_list: the lists "must be of equal sizes" on all ranks.
    """
    yield from history_findings(script, MistakeKind.LIST_OF_NODE)


@collective_list_length_mismatch.look
def other_length(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Lists of different lengths."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.LENGTH, label="the lists have different lengths")


@cause("SCRIPT563", "parameters-differ-after-step", Severity.ERROR)
def parameters_differ_after_step() -> None:
    """The parameters of a replicated model differ between ranks after an optimizer step.

    ## Why it matters
    The replicas drift apart without an error. The checkpoint of rank 0 is a model that was trained on a part of the data.

    ## Fix
    Find what is not synchronized: parameters that are changed outside of the backward pass, gradients that are averaged by
    hand without a broadcast of the initial parameters, a step under `no_sync()`, or a parameter that was released after DDP
    was constructed.

    ## Example
        # before
        with model.no_sync():
            loss.backward()
        optimizer.step()
        # no error; the ranks train different models

        # after
        loss.backward()
        optimizer.step()

    ## Source
    torch/nn/parallel/distributed.py: gradients are synchronized in the backward pass only.
    """


@parameters_differ_after_step.look
def drifted(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Parameters differ although gradients are synchronized."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.PARAMETERS_DIFFER,
        lambda o, who: f"{o.values['count']} parameters differ between ranks after optimizer step {o.values['step']}",
        label="after this step the ranks have different models",
        expected="equal parameters on all ranks",
    )


@cause("SCRIPT564", "gradients-never-synchronized", Severity.ERROR)
def gradients_never_synchronized() -> None:
    """The ranks train one model and never synchronize its gradients.

    ## Why it matters
    Every rank trains a model of its own, without an error. More GPUs do not make the training faster, and all checkpoints
    but one are lost.

    ## Fix
    Wrap the model: `model = DistributedDataParallel(model)`, and call the wrapped model.

    ## Example
        # before
        model = Net().cuda()
        loss = criterion(model(x), y)
        # no error; the ranks train different models

        # after
        model = DDP(Net().cuda(), device_ids=[local_rank])
        loss = criterion(model(x), y)

    ## Source
    torch/nn/parallel/distributed.py: only the wrapped model synchronizes gradients.
    """


@gradients_never_synchronized.look
def trained_alone(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Parameters differ, and there was no synchronization."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NOT_WRAPPED,
        lambda o, who: f"no gradient is synchronized: after step {o.values['step']} the models of {who} differ",
        label="after this step the ranks have different models",
        expected="a backward pass of the wrapped model",
    )


@cause("SCRIPT565", "tensors-on-two-devices", Severity.ERROR)
def tensors_on_two_devices() -> None:
    """One operation has tensors on two devices.

    ## Why it matters
    The first step ends with `Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!`.

    ## Fix
    Move all inputs to the device of the model: `x = x.to(device)` with `device = torch.device("cuda", local_rank)`.

    ## Example
        # before
        output = model(batch)  # the batch is on the CPU
        # Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!

        # after
        output = model(batch.to(device))

    ## Source
    aten/src/ATen/core/op_registration/adaption.cpp (common_device_check_failure).
    """


@tensors_on_two_devices.look
def two_devices(rehearsal: Rehearsal) -> Iterator[Finding]:
    """An operation with tensors on two devices."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.TWO_DEVICES,
        lambda o, who: f"{o.values['operation']} gets tensors on {o.values['devices'].replace(', ', ' and ')}",
        label="tensors on two devices",
        expected="one device",
    )
