"""SCRIPT600 to SCRIPT604: habits that only running the script shows: `ddpdoctor rehearse`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import start_of, value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.syntax.module import modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT600", "same-random-numbers-on-all-ranks", Severity.WARNING)
def same_random_numbers_on_all_ranks(script: Script) -> Iterator[Finding]:
    """The ranks read different samples, and draw the same random numbers for them.

    ## Why it matters
    All ranks use the same noise, crops, or masks in each step. The effective number of augmentations is that of one rank;
    nothing fails.

    ## Fix
    Add the rank to the seed after the model is built: `torch.manual_seed(seed + rank)`.

    The model itself may keep the common seed: DDP broadcasts the parameters of rank 0.

    ## Example
        # before
        torch.manual_seed(42)

        # after
        torch.manual_seed(42 + dist.get_rank())
    """
    yield from history_findings(script, MistakeKind.SAME_DRAWS)


@same_random_numbers_on_all_ranks.look
def drawn_alike(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The same draws on all ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_DRAWS,
        lambda o, who: "all ranks draw the same random numbers for different samples",
        label="the seed is the same on all ranks",
        expected="a seed that contains the rank",
    )


@same_random_numbers_on_all_ranks.look
def merged(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Random streams that were different, and are made the same."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.STREAMS_MERGED,
        lambda o, who: f"after this line all ranks draw the same random numbers (seen after step {o.values['step']})",
        label="one state for all ranks",
        expected="a state or seed for each rank, as before",
    )


@same_random_numbers_on_all_ranks.look
def drawn_alike_by_workers(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The same draws in the workers of all ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_WORKER_DRAWS,
        lambda o, who: f"the data workers of all ranks have the same seed of `{o.values['what']}`",
        label="the seed does not contain the rank",
        expected="a seed that contains the rank and the number of the worker",
    )


@cause("SCRIPT601", "schedule-longer-than-training", Severity.WARNING)
def schedule_longer_than_training(script: Script) -> Iterator[Finding]:
    """A learning rate schedule counts all steps, but each rank makes only its share.

    ## Why it matters
    With 8 ranks the training ends after an eighth of the schedule: the rate is still in its warm-up, or has hardly decayed.

    ## Fix
    Count the batches of the loader: `epochs * len(loader)`, which a DistributedSampler has already divided by the ranks.

    ## Example
        # before
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(dataset) // batch_size)

        # after
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    """
    yield from history_findings(script, MistakeKind.SCHEDULE_TOO_LONG)


@schedule_longer_than_training.look
def too_long(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A schedule that is as many times too long as there are ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.LONG_SCHEDULE,
        lambda o, who: (
            f"the schedule has {o.values['total']} steps, but each of {o.values['ranks']} ranks makes {o.values['made']}"
        ),
        label="counts the steps of all ranks",
        expected="as many steps as one rank makes",
    )


@cause("SCRIPT602", "spawn-under-launcher", Severity.ERROR, stage=CausalStage.RANK_ERROR)
def spawn_under_launcher(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """Every process that the launcher starts spawns a whole set of ranks itself.

    ## Why it matters
    torchrun with 4 processes and `mp.spawn` with 4 start 16: several join with the same rank, share a GPU, and wait
    for each other until the timeout, or fail with `Address already in use`.

    ## Fix
    Use one of the two: start the script with `python`, or remove the spawn and read RANK and LOCAL_RANK.

    ## Example
        # before
        # torchrun --nproc-per-node 4 train.py
        mp.spawn(worker, nprocs=4)

        # after
        # torchrun --nproc-per-node 4 train.py
        worker(int(os.environ["LOCAL_RANK"]))
    """
    for module in modules(script):
        start = start_of(module, launch)
        several = start is not None and start.gives_ranks and (start.world is None or start.world > 1)
        for spawn in module.spawns if several else ():
            alone = spawn.count is None or value(module, spawn.count) == 1
            if spawn.how == "spawn" and not alone:
                yield point(
                    module,
                    spawn.call,
                    f"every process of the launcher starts {code(module, spawn.call.func)} with a whole set of ranks",
                    "either the launcher or mp.spawn",
                    label="the launcher has already started the ranks",
                )


@spawn_under_launcher.look
def spawned_by_ranks(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ranks that spawn ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SPAWN_UNDER_LAUNCHER,
        lambda o, who: f"each of {len(o.ranks)} launched processes spawns {o.values['count']} more",
        label="the launcher has already started the ranks",
        expected="either the launcher or mp.spawn",
    )


@cause("SCRIPT603", "gradients-divided-twice", Severity.WARNING)
def gradients_divided_twice(script: Script) -> Iterator[Finding]:
    """Gradients that are averaged over the ranks are divided by the number of ranks once more.

    ## Why it matters
    The update is as many times smaller as there are ranks. The job trains, as with a learning rate that is too low.

    ## Fix
    Divide once: DDP and `ReduceOp.AVG` have already divided.

    ## Example
        # before
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        p.grad /= world_size

        # after
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    ## Source
    torch/nn/parallel/distributed.py: "the gradients from each node are averaged".
    """
    yield from history_findings(script, MistakeKind.AVERAGED_TWICE, MistakeKind.LOSS_DIVIDED)


@gradients_divided_twice.look
def divided_again(rehearsal: Rehearsal) -> Iterator[Finding]:
    """An average, or the loss of a DDP model, divided by the number of ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.DIVIDED_TWICE,
        lambda o, who: f"{o.values['what']}: divided by the number of ranks again",
        label="the gradients are already an average",
        expected="one division",
    )


@cause("SCRIPT604", "gradients-unscaled-before-reduce", Severity.ERROR)
def gradients_unscaled_before_reduce(script: Script) -> Iterator[Finding]:
    """A GradScaler looks for infinite gradients before the ranks reduce them.

    ## Why it matters
    Each rank decides from its own gradients whether to skip the step. If one rank skips and the others do not, the replicas
    differ from then on, and no error says so.

    ## Fix
    Reduce the gradients first, then call `scaler.unscale_(optimizer)`.

    ## Example
        # before
        scaler.unscale_(optimizer)
        for p in model.parameters():
            dist.all_reduce(p.grad)

        # after
        for p in model.parameters():
            dist.all_reduce(p.grad)
        scaler.unscale_(optimizer)

    ## Source
    torch/amp/grad_scaler.py: unscale_ records found_inf for each device of this process.
    """
    yield from history_findings(script, MistakeKind.UNSCALED_TOO_EARLY)


@gradients_unscaled_before_reduce.look
def unscaled_first(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Gradients that are reduced after they were unscaled."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNSCALED_EARLY,
        lambda o, who: "gradients are unscaled before the ranks reduce them",
        label="each rank skips steps by its own gradients",
        expected="unscale_ after the reduction",
    )
