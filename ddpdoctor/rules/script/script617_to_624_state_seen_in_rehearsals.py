"""SCRIPT617 to SCRIPT624: data, state and files that only running the script shows: `ddpdoctor rehearse`."""

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


@cause("SCRIPT617", "epoch-replayed", Severity.WARNING)
def epoch_replayed(script: Script) -> Iterator[Finding]:
    """A shuffling loader is read once, and its batches are used for all epochs.

    ## Why it matters
    `itertools.cycle(loader)` keeps the batches of the first pass and repeats them. `set_epoch` has no effect, random augmentation
    stops, and the memory for all batches is never released.

    ## Fix
    Iterate over the loader again in each epoch.

    ## Example
        # before
        batches = itertools.cycle(loader)

        # after
        def forever(loader, sampler):
            for epoch in itertools.count():
                sampler.set_epoch(epoch)
                yield from loader

    ## Source
    Python's itertools.cycle: "saves a copy of each" element.
    """
    yield from history_findings(script, MistakeKind.LOADER_CYCLED)


@epoch_replayed.look
def replayed(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Steps after the end of a shuffled epoch without another one."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.BATCHES_REPEATED,
        lambda o, who: "later epochs have the batches of the first one, although the loader shuffles",
        label="the loader is not iterated again",
        expected="a new iterator for each epoch",
    )


@cause("SCRIPT618", "replicated-tensor-differs", Severity.ERROR)
def replicated_tensor_differs(script: Script) -> Iterator[Finding]:
    """A DTensor is declared replicated, but its local values differ between ranks.

    ## Why it matters
    `DTensor.from_local(value, mesh, [Replicate()])` believes the placement, as tensor-parallel layers do with
    their inputs. Each rank computes with its own value, and no error says so.

    ## Fix
    Use `Partial()` for parts of a sum, reduce the value first, or give the ranks of a tensor-parallel group the same batch.

    ## Example
        # before
        mean = DTensor.from_local(x.mean(0), mesh, [Replicate()])

        # after
        mean = x.mean(0)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        mean = DTensor.from_local(mean, mesh, [Replicate()])

    ## Source
    torch/distributed/tensor/_api.py, DTensor.from_local: "it is the user's responsibility" to pass consistent values.
    """
    yield from history_findings(script, MistakeKind.REPLICA_DIFFERS)


@replicated_tensor_differs.look
def not_replicated(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A DTensor that is called replicated and is not."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NOT_REPLICATED,
        lambda o, who: f"a DTensor is made as Replicate() from values that differ between {who}",
        label="from_local does not make the values equal",
        expected="equal values, or Partial()",
    )


@cause("SCRIPT619", "learning-rates-differ", Severity.ERROR)
def learning_rates_differ() -> None:
    """The ranks take an optimizer step with different learning rates.

    ## Why it matters
    The gradients are equal and the steps are not: the replicas drift apart without an error. Usual reasons: a scheduler or its
    state that only one rank steps or loads, and a schedule made of a local count.

    ## Fix
    Step and load the scheduler on all ranks, with the same numbers.

    ## Example
        # before
        if rank == 0:
            scheduler.step()

        # after
        scheduler.step()
    """


@learning_rates_differ.look
def rates_differ(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Learning rates of one optimizer differ between ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.RATES_DIFFER,
        lambda o, who: f"in step {o.values['step']} the ranks have different learning rates: {o.values['rates']}",
        label="from this step on the models drift apart",
        expected="one learning rate on all ranks",
    )


@cause("SCRIPT620", "node-local-file-missing", Severity.ERROR, stage=CausalStage.RANK_ERROR)
def node_local_file_missing(script: Script) -> Iterator[Finding]:
    """One rank writes a file on its node, and ranks of other nodes read it.

    ## Why it matters
    Folders such as `/tmp` and `$SLURM_TMPDIR` exist on each node. With `rank == 0` only the first node has the file; the others
    end with `FileNotFoundError`, or read an old file.

    ## Fix
    Let one rank per node write: `if local_rank == 0`.

    Or write to a shared folder.

    ## Example
        # before
        if rank == 0:
            torch.save(data, "/tmp/data.pt")
        dist.barrier()
        data = torch.load("/tmp/data.pt")

        # after
        if int(os.environ["LOCAL_RANK"]) == 0:
            torch.save(data, "/tmp/data.pt")
        dist.barrier()
        data = torch.load("/tmp/data.pt")
    """
    yield from history_findings(script, MistakeKind.NOT_ON_EVERY_NODE)


@node_local_file_missing.look
def missing_on_other_nodes(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A file in a folder of one node that another node reads."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NODE_FILE,
        lambda o, who: f"rank {o.values['writer']} writes {o.values['path']}, which {who} on another node read",
        label="only this node has the file",
        expected="one rank per node, or a shared folder",
    )


@cause("SCRIPT621", "shards-scaled-by-local-norm", Severity.ERROR)
def shards_scaled_by_local_norm(script: Script) -> Iterator[Finding]:
    """Each rank clips its shards of the gradients by its own norm.

    ## Why it matters
    The parts of one gradient are scaled differently, so its direction changes with the number of ranks. No error says so.

    ## Fix
    Use `torch.nn.utils.clip_grad_norm_` on DTensor parameters, `FSDP.clip_grad_norm_` for FSDP1, or all_reduce the squared norm.

    ## Example
        # before
        total = sum(g.to_local().pow(2).sum() for g in gradients)
        scale = max_norm / total.sqrt()

        # after
        total = sum(g.to_local().pow(2).sum() for g in gradients)
        dist.all_reduce(total)
        scale = max_norm / total.sqrt()
    """
    yield from history_findings(script, MistakeKind.SHARD_SCALED)


@shards_scaled_by_local_norm.look
def scaled_shards(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Each rank scales its shards of the gradients by its own factor."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SHARDS_SCALED,
        lambda o, who: f"each rank scales its shards of the gradients by another factor: {o.values['factors']}",
        label="the norm of the shards of one rank",
        expected="the norm over all ranks",
    )


@cause("SCRIPT622", "model-moved-after-ddp", Severity.WARNING)
def model_moved_after_ddp(script: Script) -> Iterator[Finding]:
    """The parameters of a DDP model are moved to another type of device after its construction.

    ## Why it matters
    DDP attaches its hooks to the gradient accumulators of the parameters on their first device. Moved parameters get others:
    their gradients may stay unsynchronized, and no error says so.

    ## Fix
    Leave the model on its device, or construct DDP again after the move.

    ## Example
        # before
        model = DDP(net.cuda())
        model.to("cpu")
        model.to("cuda")

        # after
        net.to("cuda")
        model = DDP(net)

    ## Source
    torch/nn/parallel/distributed.py: the reducer registers a hook on each parameter's gradient accumulator at construction.
    """
    yield from history_findings(script, MistakeKind.MOVED_AFTER_WRAP)


@model_moved_after_ddp.look
def moved_after_wrapping(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Parameters change their type of device after DDP was constructed."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.MOVED,
        lambda o, who: f"parameters of a DDP model are moved from {o.values['before']} to {o.values['after']}",
        label="DDP has registered the parameters on the other device",
        expected="a model that stays on its device",
    )


@cause("SCRIPT623", "padded-samples-counted", Severity.WARNING)
def padded_samples_counted() -> None:
    """A metric counts the samples that a DistributedSampler repeats.

    ## Why it matters
    The sampler repeats samples so that all ranks have equally many. The sum counts them twice, and is divided by the size of
    the data set: an accuracy is too large, and may exceed 1.

    ## Fix
    Divide by the number of samples that were counted, or evaluate without padding:
    `Subset(data, range(rank, len(data), world_size))`.

    ## Example
        # before
        dist.all_reduce(correct)
        accuracy = correct.item() / len(dataset)

        # after
        counts = torch.stack([correct, seen])
        dist.all_reduce(counts)
        accuracy = (counts[0] / counts[1]).item()

    ## Source
    torch/utils/data/distributed.py: DistributedSampler adds "extra samples to make it evenly divisible".
    """


@padded_samples_counted.look
def padding_counted(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A sum over padded shards divided by the size of the data set."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.PADDING_COUNTED,
        lambda o, who: (
            f"a sum over {o.values['read']} samples is divided by {o.values['size']}: the sampler repeats samples"
        ),
        label="the sampler has added samples",
        expected="the number of samples that were counted",
    )


@cause("SCRIPT624", "collectives-in-set-order", Severity.ERROR)
def collectives_in_set_order(script: Script) -> Iterator[Finding]:
    """A loop over a set of strings calls a collective for each of them.

    ## Why it matters
    Python's hashes of strings differ between processes, and so does the order of a set. The ranks reduce different values with
    each other, or hang if the shapes differ.

    ## Fix
    Loop over `sorted(names)`, or use a list or dict, which keep their order.

    ## Example
        # before
        for name in {"loss", "accuracy"}:
            dist.all_reduce(values[name])

        # after
        for name in sorted({"loss", "accuracy"}):
            dist.all_reduce(values[name])

    ## Source
    Python documentation, PYTHONHASHSEED: hashes of str are "salted" with a random value.
    """
    yield from history_findings(script, MistakeKind.SET_ORDER)


@collectives_in_set_order.look
def set_order(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A loop over a set of texts that calls collectives."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SET_ORDER,
        lambda o, who: f"the loop over the set {o.values['name']} calls collectives in another order on each rank",
        label="sets of str have another order in each process",
        expected="sorted(…)",
    )
