"""SCRIPT560 to SCRIPT566: mistakes that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT560", "collective-root-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_root_mismatch() -> None:
    """The ranks call one collective with different roots.

    ## Why it matters
    Each rank takes part in another operation: a broadcast from the own rank changes nothing, and the ranks keep different values,
    without an error; a reduce or gather with different roots hangs until the timeout.

    ## Fix
    Pass the same `src` or `dst` on all ranks: a constant such as 0, not the rank.

    ## Example
        # before
        dist.broadcast(x, src=dist.get_rank())
        # no error; every rank keeps its own x

        # after
        dist.broadcast(x, src=0)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp compares operation, shape and dtype; the root is not compared.
    """


@collective_root_mismatch.look
def other_root(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One collective with different roots."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.ROOT, label="the root differs between ranks")


@cause("SCRIPT561", "reduce-op-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def reduce_op_mismatch() -> None:
    """The ranks call one reduction with different operators.

    ## Why it matters
    Nothing compares the operators: each rank combines the values in its own way, and the results differ between ranks, without an
    error.

    ## Fix
    Pass the same `op` on all ranks.

    ## Example
        # before
        dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
        # no error; the ranks have different results

        # after
        dist.all_reduce(x, op=dist.ReduceOp.SUM)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp compares operation, shape and dtype; the operator is not compared.
    """


@reduce_op_mismatch.look
def other_operator(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One reduction with different operators."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.REDUCTION, label="the operator differs between ranks")


@cause("SCRIPT562", "collective-list-length-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_list_length_mismatch() -> None:
    """The ranks pass lists of different lengths to one collective.

    ## Why it matters
    `broadcast_object_list` sends one size for each object: a rank with a longer or shorter list reads another tensor than
    the one that is sent. It hangs, or fails with `UnpicklingError` or a size error of the backend.

    ## Fix
    Make the list as long on all ranks: `objects = [value] if rank == 0 else [None]`.

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


@cause("SCRIPT566", "call-refused-by-backend", Severity.ERROR)
def call_refused_by_backend() -> None:
    """The script calls what its backend does not have.

    ## Why it matters
    The call raises on all ranks when the job runs on GPUs: `monitored_barrier is only implemented for GLOO backend.`

    ## Fix
    Use `dist.barrier()`, or pass a gloo group: `dist.monitored_barrier(group=dist.new_group(backend="gloo"))`.

    ## Example
        # before
        dist.init_process_group("nccl")
        dist.monitored_barrier()
        # ValueError: monitored_barrier is only implemented for GLOO backend.

        # after
        dist.barrier()

    ## Source
    torch/distributed/distributed_c10d.py, monitored_barrier.
    """


@call_refused_by_backend.look
def refused(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A call that the backend does not have."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.REFUSED,
        lambda o, who: f"{o.values['op']}() does not exist for the nccl backend",
        label="raises with nccl",
        expected="a call that nccl has",
    )


@parameters_differ_after_step.look
def not_synchronized(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A step with gradients that no backward pass has synchronized."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNSYNCHRONIZED,
        lambda o, who: "an optimizer step follows a backward pass that synchronizes no gradient",
        label="this backward pass does not synchronize",
        expected="the last backward pass before a step outside of no_sync()",
    )
