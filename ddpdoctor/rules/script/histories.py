"""Findings from histories: what a script does to each value, module, file and group, in the order in which it runs.

`scripts/histories` executes the program and lists the steps that its tables of legal orders lack; this module says them in words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import is_test
from ddpdoctor.scripts.histories.mistakes import mistakes_of
from ddpdoctor.scripts.histories.record import Mistake, MistakeKind
from ddpdoctor.scripts.syntax.module import Module, modules

__all__ = ["has_mistake", "history_findings", "with_histories"]

Check = Callable[..., Iterable[Finding] | None]


@dataclass(frozen=True, slots=True)
class Words:
    """How a mistake is said: `{code}` is the text at its place, `{line}` the earlier step's line."""

    headline: str
    expected: str
    label: str
    severity: Severity | None = None
    is_likely: bool = False


_WORDS = {
    MistakeKind.DECIDED_ALONE: Words(
        "`{code}` is decided by each rank alone, before a collective (line {line})",
        "a decision that all ranks share: all_reduce or broadcast it first",
        "ranks decide differently: the others wait",
    ),
    MistakeKind.UNEVEN_LOOP: Words(
        "{code} has different lengths on the ranks, and each iteration communicates (line {line})",
        "the same number of iterations on all ranks",
        "ranks that finish first leave: deadlock",
    ),
    MistakeKind.RAGGED_LOOP: Words(
        "{code} can have one item more on some ranks, and each iteration communicates (line {line})",
        "the same number of iterations on all ranks",
        "ranks that finish first leave: deadlock",
        is_likely=True,
    ),
    MistakeKind.RAGGED_SHAPES: Words(
        "this tensor has one row more on some ranks, and all_gather needs equal shapes",
        "the same number of rows on all ranks: pad or cut",
        "the data is divided as x[rank::world_size]",
        is_likely=True,
    ),
    MistakeKind.ORDER_DIFFERS: Words(
        "each rank takes its part of a list that it has shuffled by itself (line {line})",
        "a shuffle with a seed that is the same on all ranks",
        "parts overlap, other samples are missing",
    ),
    MistakeKind.HASH_OF_TEXT: Words(
        "hash() of a text differs between processes: the ranks do not divide the data",
        "a stable hash, such as zlib.crc32(name.encode())",
        "Python randomizes the hash of text",
    ),
    MistakeKind.SAMPLER_SEED_DIFFERS: Words(
        "the DistributedSampler has a different seed on each rank",
        "the same seed on all ranks",
        "parts overlap, other samples are missing",
    ),
    MistakeKind.SYNCBN_AFTER_WRAP: Words(
        "this model is already wrapped by DDP",
        "convert_sync_batchnorm before DDP",
        "convert first, then wrap",
    ),
    MistakeKind.SCHEDULER_LOCAL: Words(
        "ReduceLROnPlateau gets a metric that differs between the ranks",
        "a metric that is reduced over all ranks",
        "each rank decides on its own learning rate",
    ),
    MistakeKind.READ_BEFORE_WRITTEN: Words(
        "all ranks read a file that rank 0 may still be writing (line {line})",
        "a barrier between writing and reading",
        "no barrier since it was written",
    ),
    MistakeKind.SET_ORDER: Words(
        "each process iterates over the set {code} in another order, and communicates (line {line})",
        "sorted(...)",
        "the ranks reduce different items together",
    ),
    MistakeKind.GROUPS_CROSSED: Words(
        "some ranks use these groups in the opposite order",
        "one order of the groups on all ranks",
        "ranks of both groups wait for each other",
    ),
    MistakeKind.KEYS_DIFFER: Words(
        "{code} has keys that depend on the data of the rank",
        "the same keys on all ranks",
        "ranks without a key make fewer calls",
    ),
    MistakeKind.SHARDED_ON_ONE_RANK: Words(
        "only one rank runs the forward pass of a sharded model (condition in line {line})",
        "the forward pass on all ranks",
        "its all_gather waits for the other ranks",
    ),
    MistakeKind.HIDDEN_ON_ONE_RANK: Words(
        "`{code}` lets one rank reach a collective in a function (line {line})",
        "the call on all ranks, and the condition around the print",
        "the others never make this call",
    ),
    MistakeKind.GROUP_ON_ONE_RANK: Words(
        "only one rank reaches this new_group (condition in line {line})",
        "new_group on all ranks",
        "new_group waits for all ranks",
    ),
    MistakeKind.AVERAGED_TWICE: Words(
        "the result of ReduceOp.AVG (line {line}) is divided by the world size again",
        "no division",
        "AVG has already divided",
    ),
    MistakeKind.LOSS_DIVIDED: Words(
        "the loss contains a division by the world size, and DDP averages its gradients too",
        "no division by the world size",
        "DDP divides by the world size as well",
    ),
    MistakeKind.DIVIDED_BY_NODE: Words(
        "a sum over all ranks is divided by torch.cuda.device_count(), the GPUs of one node",
        "dist.get_world_size()",
        "wrong on more than one node",
    ),
    MistakeKind.LIST_OF_NODE: Words(
        "the output list has torch.cuda.device_count() entries, one for each GPU of one node",
        "one entry per rank: dist.get_world_size()",
        "wrong on more than one node",
    ),
    MistakeKind.LOSS_REDUCED: Words(
        "backward starts from a loss that was reduced in place",
        "all_reduce of loss.detach().clone(), after the backward pass",
        "autograd does not see the collective",
    ),
    MistakeKind.TOTAL_REDUCED_AGAIN: Words(
        "a running total is reduced in place, added to, and reduced again",
        "all_reduce of total.clone()",
        "earlier contributions are counted world_size times",
    ),
    MistakeKind.GATHERED_WITHOUT_GRADIENT: Words(
        "the loss uses the outputs of this all_gather, which have no gradient (backward in line {line})",
        "the rank's own tensor put back: parts[rank] = x",
        "no gradient flows through all_gather",
        Severity.WARNING,
    ),
    MistakeKind.HANDLE_OVERWRITTEN: Words(
        "the handle of this asynchronous call is overwritten before wait()",
        "a list of handles, and wait() for each",
        "only the last call is waited for",
    ),
    MistakeKind.UNSCALED_TOO_EARLY: Words(
        "unscale_ checks the local gradients for inf before they are reduced (line {line})",
        "the all_reduce first, then unscale_",
        "each rank decides alone whether to skip",
    ),
    MistakeKind.CLIPPED_SHARD: Words(
        "the gradient norm covers only the shard of this rank",
        "one norm for all shards: model.clip_grad_norm_() or an all_reduce of its square",
        "each rank scales by another factor",
    ),
    MistakeKind.SHARD_SCALED: Words(
        "the gradient norm covers only the shard of this rank",
        "an all_reduce of its square before the root",
        "each rank scales by another factor",
    ),
    MistakeKind.LOSS_DIVIDED_BY_SUM: Words(
        "the loss is divided by a sum over all ranks, and DDP averages its gradients too",
        "the loss multiplied by the world size",
        "DDP divides by the world size as well",
    ),
    MistakeKind.OLD_PARAMETERS: Words(
        "the optimizer is created before sharding and holds the old parameters",
        "the optimizer after fully_shard() or FSDP()",
        "these parameters are replaced later",
    ),
    MistakeKind.CHANGED_AFTER_WRAP: Words(
        "a layer is replaced after DDP() has wrapped the model",
        "before DDP()",
        "DDP does not know the new parameters",
    ),
    MistakeKind.UNFROZEN_AFTER_WRAP: Words(
        "parameters that were frozen when DDP() was created become trainable",
        "DDP() again after unfreezing",
        "their gradients are never averaged",
    ),
    MistakeKind.MOVED_AFTER_WRAP: Words(
        "the model is moved to the CPU after DDP() has wrapped it, and trained again",
        "DDP() again after moving it back",
        "moving removes the hooks of DDP",
    ),
    MistakeKind.LOADED_ON_ONE_RANK: Words(
        "`{code}`: only one rank loads weights after DDP() has broadcast the parameters",
        "load before DDP(), or on all ranks",
        "the other ranks keep their weights",
    ),
    MistakeKind.UPDATED_ON_ONE_RANK: Words(
        "`{code}`: only one rank updates a model that all ranks use",
        "the update on all ranks, or a broadcast before its use",
        "the other ranks keep the old weights",
    ),
    MistakeKind.UNLIKE_START: Words(
        "the model is created with a seed that depends on the rank, and never broadcast",
        "a broadcast of the parameters of rank 0",
        "each rank starts with different parameters",
    ),
    MistakeKind.WRAPPER_BYPASSED: Words(
        "training runs the forward pass of the inner module, not of DDP",
        "the forward pass of the wrapper",
        "DDP does not prepare to reduce the gradients",
    ),
    MistakeKind.FORWARD_BYPASSED: Words(
        "{code} uses the layers of a sharded model without its forward()",
        "register_fsdp_forward_method(model, name), or the call through forward()",
        "only forward() gathers the parameters",
    ),
    MistakeKind.BUFFERS_APART: Words(
        "evaluation uses BatchNorm statistics that differ between ranks: DDP has broadcast_buffers=False",
        "a broadcast or average of the buffers before evaluation",
        "each rank has its own running statistics",
    ),
    MistakeKind.FORWARD_RANDOM: Words(
        "`{code}` skips layers on some ranks only, and DDP waits for their gradients",
        "find_unused_parameters=True, or a factor of 0 instead of skipping",
        "skipped layers get no gradient in this step",
    ),
    MistakeKind.TAIL_NOT_SYNCHRONIZED: Words(
        "this step can follow a backward pass under no_sync, with gradients that were not averaged",
        "the last micro batch of the epoch outside no_sync",
        "gradients of the tail are local",
    ),
    MistakeKind.SAMPLER_UNUSED: Words(
        "this DistributedSampler is not passed to the DataLoader (line {line})",
        "DataLoader(..., sampler=sampler)",
        "every rank reads the whole dataset",
    ),
    MistakeKind.SAMPLER_OF_NODE: Words(
        "the DistributedSampler gets the rank or the number of ranks within one node",
        "the global rank and the world size",
        "all nodes read the same samples",
    ),
    MistakeKind.SAMPLER_OF_TENSOR_PEERS: Words(
        "the sampler gives ranks of one tensor-parallel group different data (mesh in line {line})",
        "the rank and size of the data-parallel dimension",
        "tensor-parallel peers need the same batch",
    ),
    MistakeKind.STREAM_NOT_SPLIT_BY_RANK: Words(
        "the stream is divided among the workers of the loader, not among the ranks",
        "records divided by rank and worker",
        "every rank reads all records",
    ),
    MistakeKind.STREAM_NOT_SPLIT_BY_WORKER: Words(
        "the stream is divided among the ranks, not among the workers of the loader",
        "torch.utils.data.get_worker_info() in __iter__",
        "every worker reads the same records",
    ),
    MistakeKind.LOADER_CYCLED: Words(
        "itertools.cycle replays the batches of the first epoch",
        "a new iteration over the loader after set_epoch",
        "set_epoch has no effect",
    ),
    MistakeKind.SPLIT_DIFFERS: Words(
        "random_split draws from a generator that is seeded with the rank",
        "generator=torch.Generator().manual_seed(seed)",
        "each rank has a different split",
    ),
    MistakeKind.SAME_DRAWS: Words(
        "all ranks draw the same random numbers for different batches: the seed has no rank",
        "torch.manual_seed(seed + rank)",
        "the same numbers on all ranks",
    ),
    MistakeKind.SCHEDULE_TOO_LONG: Words(
        "{code} counts the steps of all ranks together",
        "len(loader)",
        "training ends long before the schedule",
    ),
    MistakeKind.FOLDER_DIFFERS: Words(
        "every rank names its run folder by itself and creates it (line {line})",
        "a name that rank 0 chooses and broadcasts",
        "the value differs between ranks",
    ),
    MistakeKind.WRITTEN_PER_NODE: Words(
        "local rank 0 of every node writes this file",
        "global rank 0",
        "one writer per node, one path",
        Severity.NOTE,
    ),
    MistakeKind.NOT_ON_EVERY_NODE: Words(
        "all ranks read a node-local file that only rank 0 writes (line {line})",
        "a writer on each node: local rank 0",
        "the other nodes do not have the file",
    ),
    MistakeKind.FOLDER_MISSING: Words(
        "all ranks write into a folder that only one rank creates (line {line})",
        "a barrier after makedirs, or makedirs(exist_ok=True) on all ranks",
        "the folder may not exist yet",
    ),
    MistakeKind.REMOVED_WHILE_READ: Words(
        "one rank removes a file that the others may still read (line {line})",
        "a barrier before the file is removed",
        "no barrier since the others began to read",
    ),
    MistakeKind.ROOT_OUTSIDE_GROUP: Words(
        "the root is a global rank, and most of these groups do not contain it",
        "a global rank of the own group, or group_src=0",
        "src and dst are global ranks",
    ),
    MistakeKind.GROUP_OF_OTHERS: Words(
        "all ranks call this with a group that only some of them belong to (line {line})",
        "the group of the calling rank",
        "a no-op on ranks outside the group",
    ),
    MistakeKind.SPLITS_NOT_EXCHANGED: Words(
        "output_split_sizes are the sizes that this rank sends, not those that it receives",
        "the sizes of the peers, exchanged by all_to_all_single",
        "the peers send other sizes",
    ),
    MistakeKind.LIST_ON_EVERY_RANK: Words(
        "gather_list is given on every rank, and gather accepts it on the destination only",
        "gather_list=parts if rank == 0 else None",
        "the other ranks raise a ValueError",
    ),
    MistakeKind.REPLICA_DIFFERS: Words(
        "DTensor.from_local declares values as replicated that differ between ranks",
        "Partial() and redistribute, or an all_reduce before",
        "nothing makes the values equal",
    ),
    MistakeKind.PART_OVER_WHOLE: Words(
        "a count of one rank is divided by the size of the whole data set",
        "the count of all ranks: all_reduce it first",
        "too small by the world size",
    ),
    MistakeKind.COUNTED_BY_EVERY_RANK: Words(
        "every rank counts the whole data set, and the sum over ranks is divided by its size",
        "a DistributedSampler for the loader, or no all_reduce",
        "too large by the world size",
    ),
    MistakeKind.SUM_AS_MEAN: Words(
        "all_reduce adds the means of all ranks, and the result is shown without a division",
        "ReduceOp.AVG, or a division by the world size",
        "too large by the world size",
    ),
    MistakeKind.BEST_OF_ONE_RANK: Words(
        "`{code}` selects the best model by the metric of one rank's part of the data",
        "a metric that is reduced over all ranks",
        "computed from this rank's samples only",
    ),
    MistakeKind.STATE_LOADED_ON_ONE_RANK: Words(
        "only one rank loads this state, and DDP does not broadcast it",
        "load_state_dict on all ranks",
        "the other ranks keep their state",
    ),
    MistakeKind.STEPPED_ON_ONE_RANK: Words(
        "only one rank takes this step, although all ranks train the model",
        "step() on all ranks",
        "the other ranks keep the old values",
    ),
    MistakeKind.CLIPPED_SCALED: Words(
        "gradients are clipped while they are multiplied by the loss scale",
        "scaler.unscale_(optimizer) before clipping",
        "the norm is that of scaled gradients",
    ),
    MistakeKind.STEPPED_SCALED: Words(
        "optimizer.step() applies gradients that are multiplied by the loss scale",
        "scaler.step(optimizer)",
        "the step is too long by the scale",
    ),
    MistakeKind.REDUCED_AGAIN: Words(
        "gradients that were reduced in an earlier micro batch are reduced again",
        "one all_reduce after the last micro batch",
        "earlier micro batches are multiplied by the world size",
    ),
    MistakeKind.GRADIENT_BYPASSES_DDP: Words(
        "torch.autograd.grad does not run the hooks of DDP, and its gradients are applied",
        "backward(), or an all_reduce of the gradients",
        "these gradients are never averaged",
    ),
    MistakeKind.FORWARD_OUTSIDE_NO_SYNC: Words(
        "this backward pass runs under no_sync, and its forward pass does not",
        "forward and backward inside no_sync()",
        "DDP decides in the forward pass",
    ),
    MistakeKind.GROUP_RANK_AS_GLOBAL: Words(
        "the rank within the group is passed as a rank of the job",
        "dist.get_global_rank(group, r), or group_src= and group_dst=",
        "src, dst and peer are global ranks",
    ),
    MistakeKind.GLOBAL_RANK_AS_GROUP: Words(
        "a rank of the job is passed as a rank within the group",
        "dist.get_group_rank(group, r)",
        "group_src, group_dst and group_peer count within the group",
    ),
    MistakeKind.NEVER_INITIALIZED: Words(
        "to_empty() leaves the weights uninitialized, and the model is used",
        "an initialization or a checkpoint after to_empty()",
        "nothing writes the weights",
    ),
    MistakeKind.FROZEN_WRAPPED: Words(
        "DDP gets a model without a parameter that requires a gradient",
        "the frozen model without DDP",
        "DDP refuses it",
    ),
    MistakeKind.FROZEN_IN_FLAT_PARAMETER: Words(
        "FSDP gets frozen and trainable parameters in one unit",
        "use_orig_params=True, or a wrapper for the frozen part",
        "one flat parameter needs one requires_grad",
        is_likely=True,
    ),
    MistakeKind.COLLECTIVE_IN_JOIN: Words(
        "this collective runs inside the join context, which answers only those of DDP",
        "the call after the context",
        "ranks without inputs do not make it",
    ),
    MistakeKind.RANDOM_STATE_COPIED: Words(
        "all ranks restore the random state of one rank, although each had its own seed",
        "one saved state per rank",
        "all ranks draw the same numbers from here",
    ),
    MistakeKind.WORKERS_SEEDED_ALIKE: Words(
        "the workers of all ranks get the same seeds: the seed contains no rank",
        "a seed with the rank, or torch.initial_seed()",
        "worker k draws the same numbers on every rank",
    ),
    MistakeKind.SAMPLER_DRAWS_ALIKE: Words(
        "this sampler does not know the ranks, and draws the same samples on all of them",
        "a generator that is seeded with the rank, or a DistributedSampler",
        "every rank trains on the same samples",
    ),
    MistakeKind.SPLIT_TWICE: Words(
        "DistributedSampler divides a data set that is already the part of this rank",
        "one division: the whole data set for the sampler",
        "most samples are never read",
    ),
    MistakeKind.EPOCH_SET_TOO_LATE: Words(
        "set_epoch comes after the iterator of this epoch is created (line {line})",
        "set_epoch first",
        "the iterator has the order of the epoch before",
    ),
    MistakeKind.ONE_GPU_VISIBLE: Words(
        "CUDA_VISIBLE_DEVICES leaves one GPU, which is then selected by the local rank (line {line})",
        "no change of CUDA_VISIBLE_DEVICES",
        "the only visible GPU is cuda:0",
    ),
    MistakeKind.PORT_OF_PROCESS: Words(
        "every process chooses its own MASTER_PORT",
        "one port, chosen before the processes start",
        "the ranks never find each other",
    ),
    MistakeKind.NAMES_OF_WRAPPER: Words(
        "parameter names do not fit: those of the DDP wrapper have the prefix `module.`",
        "names of model.module on both sides",
        "keys are missing or unexpected",
    ),
}


def history_findings(script: Script, *kinds: MistakeKind) -> Iterator[Finding]:
    """The mistakes of these kinds in the programs of a script."""
    for module in modules(script):
        if is_test(module):
            continue
        for mistake in mistakes_of(module):
            if mistake.kind in kinds:
                yield _finding(mistake)


def has_mistake(module: Module, kind: MistakeKind) -> bool:
    """Whether the program of this file makes a mistake of a kind."""
    return any(m.kind is kind for m in mistakes_of(module))


def _finding(mistake: Mistake) -> Finding:
    words = _WORDS[mistake.kind]
    line = getattr(mistake.earlier, "lineno", 0)
    headline = words.headline.format(code=_short(mistake.module, mistake), line=line)
    if not line:
        headline = headline.replace(" (line 0)", "")
    finding = point(mistake.module, mistake.node, headline, words.expected, label=words.label, severity=words.severity)
    return finding.if_certain(not words.is_likely)


def _short(module: Module, mistake: Mistake) -> str:
    return code(module, mistake.node, 40)


def with_histories(*kinds: MistakeKind) -> Callable[[Check], Check]:
    """Let a cause also report mistakes of these kinds, in files where it reports nothing yet."""

    def extend(check: Check) -> Check:
        def both(script: Script, found: list[Finding]) -> Iterator[Finding]:
            yield from found
            files = {f.where.file for f in found}
            yield from (f for f in history_findings(script, *kinds) if f.where.file not in files)

        @functools.wraps(check)
        def of_script(script: Script) -> Iterator[Finding]:
            yield from both(script, list(check(script) or ()))

        @functools.wraps(check)
        def of_launch(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
            yield from both(script, list(check(script, launch) or ()))

        return of_launch if check.__code__.co_argcount == 2 else of_script

    return extend
