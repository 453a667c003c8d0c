"""SCRIPT685 to SCRIPT693: calls that come too early, too late, twice, or with the number of another rank."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT685", "forward-outside-no-sync", Severity.WARNING)
def forward_outside_no_sync(script: Script) -> Iterator[Finding]:
    """The backward pass runs under no_sync, but its forward pass does not.

    ## Why it matters
    DDP decides in the forward pass whether the next backward pass reduces gradients. Every micro batch is reduced, and
    no communication is saved.

    ## Fix
    Put forward and backward pass into `with model.no_sync():`.

    ## Example
        # before
        loss = loss_of(model(x))
        with model.no_sync():
            loss.backward()

        # after
        with model.no_sync():
            loss = loss_of(model(x))
            loss.backward()

    ## Source
    PyTorch documentation of no_sync: "The forward pass should be included inside the context manager".
    """
    yield from history_findings(script, MistakeKind.FORWARD_OUTSIDE_NO_SYNC)


@cause("SCRIPT686", "rank-of-other-group", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_of_other_group(script: Script) -> Iterator[Finding]:
    """A rank within a group is passed where a global rank is expected, or the reverse.

    ## Why it matters
    `src`, `dst` and `peer` are global ranks, even with `group=`. In every group but the first, the call addresses a rank
    that is not a member: `Global rank 0 is not part of group`, or a wait for a message that another rank gets.

    ## Fix
    Convert with `dist.get_global_rank(group, r)`, or pass `group_src=`, `group_dst=` or `group_peer=`.

    ## Example
        # before
        dist.send(x, dst=1 - dist.get_rank(group), group=group)

        # after
        dist.send(x, dst=dist.get_global_rank(group, 1 - dist.get_rank(group)), group=group)

    ## Source
    PyTorch documentation of torch.distributed.send: "Destination rank on global process group (regardless of group argument)".
    """
    yield from history_findings(script, MistakeKind.GROUP_RANK_AS_GLOBAL, MistakeKind.GLOBAL_RANK_AS_GROUP)


@cause("SCRIPT687", "weights-never-initialized", Severity.ERROR)
def weights_never_initialized(script: Script) -> Iterator[Finding]:
    """A model made on the meta device is trained with the memory that to_empty() has left.

    ## Why it matters
    `to_empty()` allocates parameters and buffers and writes nothing. Training starts from whatever the memory held: zeros,
    old data or NaN, different on each rank.

    ## Fix
    Initialize the weights or load a checkpoint after `to_empty()`.

    ## Example
        # before
        with torch.device("meta"):
            model = Model()
        model.to_empty(device="cuda")

        # after
        with torch.device("meta"):
            model = Model()
        model.to_empty(device="cuda")
        model.init_weights()

    ## Source
    PyTorch documentation of Module.to_empty: "Move the parameters and buffers to the specified device without copying storage".
    """
    yield from history_findings(script, MistakeKind.NEVER_INITIALIZED)


@cause("SCRIPT688", "frozen-parameters-wrapped", Severity.ERROR, stage=CausalStage.RANK_ERROR)
def frozen_parameters_wrapped(script: Script) -> Iterator[Finding]:
    """A wrapper gets parameters that do not require gradients, and cannot handle them.

    ## Why it matters
    DDP refuses a module without a trainable parameter: `DistributedDataParallel is not needed when a module doesn't have any
    parameters that require a gradient`. FSDP 1 puts all parameters of a unit into one, and needs the same requires_grad for all:
    `Must flatten tensors with uniform requires_grad when use_orig_params=False`.

    ## Fix
    Leave a frozen model unwrapped. Pass `use_orig_params=True` to FSDP.

    ## Example
        # before
        teacher.requires_grad_(False)
        teacher = DDP(teacher)

        # after
        teacher.requires_grad_(False)
    """
    yield from history_findings(script, MistakeKind.FROZEN_WRAPPED, MistakeKind.FROZEN_IN_FLAT_PARAMETER)


@cause("SCRIPT689", "collective-in-join", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_in_join(script: Script) -> Iterator[Finding]:
    """A collective of the script runs inside the join context, which answers only those of DDP.

    ## Why it matters
    A rank without further inputs joins the collectives that DDP makes. It does not know those of the script: the other ranks
    wait in them, or they are paired with calls of DDP.

    ## Fix
    Call it after the context, or pass `throw_on_early_termination=True`.

    ## Example
        # before
        with model.join():
            for x in inputs:
                model(x).sum().backward()
                dist.all_reduce(loss)

        # after
        with model.join():
            for x in inputs:
                model(x).sum().backward()
        dist.all_reduce(loss)

    ## Source
    PyTorch documentation of DistributedDataParallel.join: "this context manager currently does not support custom distributed
    collective operations in the forward pass".
    """
    yield from history_findings(script, MistakeKind.COLLECTIVE_IN_JOIN)


@cause("SCRIPT690", "random-state-copied", Severity.WARNING)
def random_state_copied(script: Script) -> Iterator[Finding]:
    """All ranks, or the loader workers of all ranks, continue from the same random state.

    ## Why it matters
    Ranks then draw the same augmentation, noise and dropout masks for different samples. The effective amount of randomness is
    divided by the world size, and no error says so.

    ## Fix
    Save and load the random state of each rank in its own file, and add the rank to the seed of workers.

    ## Example
        # before
        torch.set_rng_state(torch.load("last.pt")["rng"])

        # after
        torch.set_rng_state(torch.load(f"rng_{rank}.pt"))
    """
    yield from history_findings(script, MistakeKind.RANDOM_STATE_COPIED, MistakeKind.WORKERS_SEEDED_ALIKE)


@cause("SCRIPT691", "data-split-twice", Severity.ERROR)
def data_split_twice(script: Script) -> Iterator[Finding]:
    """A DistributedSampler divides a data set that contains only the part of the rank.

    ## Why it matters
    Each rank reads 1/world_size of its own part. The other samples are never used, and no error says so.

    ## Fix
    Divide once: give the sampler the whole data set, or use a plain loader with `shuffle=True` for the part.

    ## Example
        # before
        part = items[rank::world_size]
        loader = DataLoader(part, sampler=DistributedSampler(part))

        # after
        loader = DataLoader(items, sampler=DistributedSampler(items))
    """
    yield from history_findings(script, MistakeKind.SPLIT_TWICE)


@cause("SCRIPT692", "one-gpu-visible", Severity.ERROR, stage=CausalStage.RANK_ERROR)
def one_gpu_visible(script: Script) -> Iterator[Finding]:
    """The rank hides all other GPUs, and then selects its own by the local rank.

    ## Why it matters
    With `CUDA_VISIBLE_DEVICES=1` the only device is `cuda:0`. Local rank 1 fails with `CUDA error: invalid device ordinal`.

    ## Fix
    Remove the variable, and select the device by the local rank.

    ## Example
        # before
        os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)
        torch.cuda.set_device(local_rank)

        # after
        torch.cuda.set_device(local_rank)
    """
    yield from history_findings(script, MistakeKind.ONE_GPU_VISIBLE)


@cause("SCRIPT693", "checkpoint-names-of-wrapper", Severity.ERROR, stage=CausalStage.RANK_ERROR)
def checkpoint_names_of_wrapper(script: Script) -> Iterator[Finding]:
    """A checkpoint saved from the DDP wrapper is loaded into the plain model, or the reverse.

    ## Why it matters
    The names of a wrapped model begin with `module.`. Loading fails with `Missing key(s) in state_dict` and
    `Unexpected key(s) in state_dict`.

    ## Fix
    Save `model.module.state_dict()`.

    ## Example
        # before
        torch.save(ddp.state_dict(), "model.pt")
        net.load_state_dict(torch.load("model.pt"))

        # after
        torch.save(ddp.module.state_dict(), "model.pt")
        net.load_state_dict(torch.load("model.pt"))
    """
    yield from history_findings(script, MistakeKind.NAMES_OF_WRAPPER)
