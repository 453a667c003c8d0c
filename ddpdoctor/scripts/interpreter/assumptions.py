"""What the interpreter assumes about a script although the source does not show it.

The source of a script rarely shows everything: other files call its functions, options come from the command line, helpers
are imported from packages that are not read. Each table and function here is one assumption that fills such a gap, and its
docstring states which false alarm or which missed finding it prevents. The modules of the interpreter and the simulation ask
these functions through this module, so that each assumption can be replaced in a test.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from ddpdoctor.late_pattern import pattern
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.simulated_job import RankContext, SimulatedJob
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.vocabulary import VARIABLES, words

__all__ = [
    "HELPER_FUNCTIONS",
    "MAIN_ONLY_DECORATORS",
    "MODULE_NAME",
    "RANK_ATTRIBUTES",
    "RANK_NAMES",
    "SAME_ON_ALL_RANKS",
    "are_sizes",
    "draws_same_numbers",
    "ends_with_input",
    "gpus_on_node",
    "has_same_fields",
    "holds_options",
    "is_configured_as_none",
    "is_data_loader",
    "is_default",
    "is_framework_attribute",
    "is_gpus_per_node",
    "is_rank_of_unknown_group",
    "is_set_by_launcher",
    "launcher_passes_local_rank",
    "may_communicate",
    "process_index",
    "process_start_succeeds",
    "synchronizes",
    "tests_for_several_ranks",
]

# Names.

RANK_NAMES = {
    "rank": "rank",
    "global_rank": "rank",
    "world_rank": "rank",
    "dist_rank": "rank",
    "local_rank": "local_rank",
    "world_size": "world_size",
    "is_main_process": "main",
    "is_master": "main",
    "is_main": "main",
    "is_rank_zero": "main",
    "master_process": "main",
    "main_process": "main",
}
"""A parameter, option or unassigned name called `rank` is the rank.

Prevents a miss: a collective under `if rank == 0:` in a function that the file itself does not call would not be reported.
Used only by evaluators that trust names, and only if no assignment gives another value.
"""

RANK_ATTRIBUTES = {
    "is_main_process": "main",
    "is_local_main_process": "local_main",
    "is_last_process": "last",
    "process_index": "rank",
    "local_process_index": "local_rank",
    "num_processes": "world_size",
    "is_global_zero": "main",
    "is_world_process_zero": "main",
    "is_local_process_zero": "local_main",
    "global_rank": "rank",
    "main_process": "main",
    "is_master": "main",
    "is_main": "main",
    "is_rank_zero": "main",
    "is_rank0": "main",
    "master_process": "main",
}
"""An attribute with one of these names means the same as in Accelerator, Trainer and Fabric, on any object.

Prevents a miss: a collective under `if accelerator.is_main_process:` would not be reported.
"""

_FRAMEWORKS_WITH_LOCAL_RANK = frozenset(("lightning", "pytorch_lightning", "lightning_fabric", "transformers"))


def is_framework_attribute(name: str, module: Module) -> bool:
    """`object.local_rank` in a file that uses Lightning or transformers is the local rank.

    Prevents a miss: these frameworks set the attribute in code that is not read, and `rank=args.local_rank` in
    init_process_group would not be reported.
    """
    return name == "local_rank" and bool(module.frameworks & _FRAMEWORKS_WITH_LOCAL_RANK)


HELPER_FUNCTIONS = {
    "get_rank": "rank",
    "get_global_rank": "rank",
    "get_dist_rank": "rank",
    "get_process_index": "rank",
    "process_index": "rank",
    "get_local_rank": "local_rank",
    "get_node_local_rank": "local_rank",
    "get_world_size": "world_size",
    "get_local_world_size": "local_world_size",
    "is_main_process": "main",
    "is_main": "main",
    "is_master": "main",
    "is_master_process": "main",
    "is_primary": "main",
    "is_global_primary": "main",
    "is_rank_0": "main",
    "is_rank0": "main",
    "is_rank_zero": "main",
    "is_global_zero": "main",
    "is_global_master": "main",
    "is_world_process_zero": "main",
    "is_local_process_zero": "local_main",
    "is_local_main_process": "local_main",
    "is_local_master": "local_main",
    "get_world_rank": "rank",
}
"""A function with one of these names, called without arguments, returns what the name says, if its source was not read.

Prevents a miss: a collective under `if utils.is_main_process():` would not be reported.
"""

_SUBGROUP_RANK = pattern(
    r"(^|_)(tp|pp|dp|ep|cp|sp|mp|tensor|model|pipe(line)?|data|expert|context|sequence|group|sub\w*)_.*rank"
)


def is_rank_of_unknown_group(name: str) -> bool:
    """A name such as `tp_rank` or `stage_rank` is a rank within a group of ranks that is not known.

    Prevents a false alarm: each branch of `if stage_rank == 0:` would be simulated as one that all ranks take, and what only
    some of them do there would look incomplete.
    """
    return bool(_SUBGROUP_RANK.search(name)) or name.endswith("rank")


_OPTIONS = pattern(r"(?i)^_?(args?|opts?|options?|flags?|config|cfg|conf|hparams|params|parsed|cmd_args|hps?)$")


def holds_options(name: str) -> bool:
    """An object called `args`, `opts`, `config` and the like holds the options that the file's parser defines.

    Prevents a miss: in a function that gets `args` from another file, `args.local_rank` would not be the option `--local_rank`,
    and SCRIPT004 would not know that it is a string.
    """
    return bool(_OPTIONS.match(name))


_LOADER = pattern(r"(?i)(data_?loader|_loader|^loader|dataloader|_dl$)")


def is_data_loader(name: str) -> bool:
    """An object called `train_loader`, `dataloader` and the like is a DataLoader, whose batches differ between ranks.

    Prevents a miss: a collective in a branch on such a batch or its loss would not be reported.
    """
    return bool(_LOADER.search(name))


_SYNCHRONIZES = pattern(r"(?i)reduc|gather|full_tensor|sync|broadcast|avg_across|mean_across|global_")


def synchronizes(name: str) -> bool:
    """A function named like a collective (`reduce_tensor`, `sync_metrics`) returns the same value on all ranks.

    Prevents a false alarm: `loss = reduce_mean(loss)` followed by a collective in a branch on `loss` would be reported, although
    all ranks take the same branch.
    """
    return bool(_SYNCHRONIZES.search(name))


MAIN_ONLY_DECORATORS = ("rank_zero_only", "main_process_only", "on_main_process", "master_only", "only_on_main")
"""A function with one of these decorators runs on rank 0 only.

Prevents a miss: a collective in such a function would look as if all ranks called it.
"""

_MAY_COMMUNICATE = pattern(
    r"(?i)barrier|sync|wait|gather|reduce|broadcast|bcast|collective|recv|send|worker|follow|serve|loop|train|rank"
)
_LIBRARIES = frozenset(
    words(
        "torch torchvision os sys time logging json math random numpy np pickle shutil pathlib re copy datetime wandb tqdm yaml "
        "builtins print open len str int float list dict set tuple range enumerate zip sorted min max sum abs isinstance hasattr "
        "getattr setattr format repr warnings collections itertools functools tensorboard tensorboardX mlflow PIL matplotlib "
        "pandas subprocess glob tempfile io csv argparse loguru gc psutil socket platform string hashlib"
    )
)


def may_communicate(name: str) -> bool:
    """A function whose source was not read communicates if a project defines it, or if it is named like something that does.

    `name` is dotted for an import, otherwise the last name of the call. Prevents a false alarm: `if rank == 0:
    dist.barrier()` with `else: follower.wait()` would be reported, although the other ranks may join the barrier there.
    """
    base, _, last = name.rpartition(".")
    if base:
        return base.partition(".")[0] not in _LIBRARIES
    return last not in _LIBRARIES and bool(_MAY_COMMUNICATE.search(last))


# The job and the machine.

MODULE_NAME = "__main__"
"""`__name__`: a file that is checked is the program.

Prevents a miss: what is assigned under `if __name__ == "__main__":`, such as the rank, would be one of several possible values.
"""


def is_gpus_per_node(divisor: ast.expr) -> bool:
    """The 8 in `rank % 8` is the number of GPUs per node, so that the result is the local rank.

    Prevents a false alarm: on the simulated nodes, which have two GPUs, `rank % 8` is the global rank, and SCRIPT001 would
    report `torch.cuda.set_device(rank % 8)`.
    """
    return isinstance(divisor, ast.Constant) and divisor.value in (4, 8, 16)


def gpus_on_node(job: SimulatedJob) -> int:
    """`torch.cuda.device_count()` is the number of ranks on the node.

    Prevents a miss: a collective under `if rank % torch.cuda.device_count() == 0:` would not be reported.
    """
    return job.local_world_size


def process_start_succeeds() -> object:
    """`is_available()` and `is_initialized()`, of torch.distributed and of CUDA, are true when they are called.

    Prevents a miss: with `if not dist.is_initialized(): rank = guess()` the rank would be unknown, and a collective in a
    branch on it would not be reported.
    """
    return True


def process_index(context: RankContext) -> int:
    """The index of a process that mp.spawn or a loop of Process starts is the local rank.

    Prevents a miss: `def main(gpu, args)` that mp.spawn runs would have an unknown rank, regardless of the name of the parameter.
    """
    return context.local_rank


def launcher_passes_local_rank(option: str) -> bool:
    """The option `--local_rank` holds the local rank, as torch.distributed.launch passes it.

    Prevents a miss: without `type=int` the option is a string, and SCRIPT004 would not report
    `torch.cuda.set_device(args.local_rank)`.
    """
    return option == "local_rank"


def is_set_by_launcher(variable: str) -> bool:
    """RANK, WORLD_SIZE and the like are set, by a launcher such as torchrun. Those of Slurm and MPI may not be set.

    Prevents a miss: after `if "RANK" in os.environ: rank = int(os.environ["RANK"])` and `else: rank = guess()` the rank would be
    unknown, and a collective in a branch on it would not be reported.
    """
    return variable in VARIABLES and not variable.startswith(("SLURM", "OMPI", "PMI"))


_COUNTS = pattern(
    r"(?i)^(num|n|total)_?(gpus?|procs?|process(es)?|devices?|ranks?|replicas)$|^((distributed_|dist_)?world_?size|nprocs?|ngpus?)$"
)


@lru_cache(maxsize=4096)
def tests_for_several_ranks(node: ast.expr) -> bool | None:
    """`num_gpus > 1` is true, `world_size == 1` is false; None for another condition.

    Prevents a miss: after `if num_gpus > 1: rank = dist.get_rank()` and `else: rank = guess()` the rank would be unknown, and a
    collective in a branch on it would not be reported.
    """
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    left, right = node.left, node.comparators[0]
    name = left.attr if isinstance(left, ast.Attribute) else getattr(left, "id", "")
    if not isinstance(right, ast.Constant) or right.value != 1 or not _COUNTS.match(name):
        return None
    return {ast.Gt: True, ast.NotEq: True, ast.Eq: False, ast.LtE: False}.get(type(node.ops[0]))


# Values.


def is_default(node: ast.expr | None) -> bool:
    """A literal among several possible values is a default for a run without ranks; the computed value counts.

    Prevents a miss: in `rank = 0` followed by `if distributed: rank = dist.get_rank()` the rank would be unknown, and a
    collective in a branch on it would not be reported.
    """
    return isinstance(node, ast.Constant)


def draws_same_numbers(module: Module) -> bool:
    """Random numbers are the same on all ranks if no seed in the file mentions the rank or a clock, and differ without a seed.

    Prevents a false alarm with a seed, such as `random.seed(args.seed)` or `set_seed(1)`: `if random.random() < 0.5:` around a
    collective would be reported. Without a seed, it is a finding.
    """
    seeds = [c.args[0] for c in module.calls("torch.manual_seed", "random.seed", "numpy.random.seed") if c.args]
    seeds += [c.args[0] for c in module.index.calls if c.args and _SEEDS.match(_last_name(c.func))]
    return bool(seeds) and not any(_is_of_one_rank(seed) for seed in seeds)


_SEEDS = pattern(
    r"(?i)^(set|fix|seed)_?(all_?|every_?)?(thing_?)?(random_?)?seeds?$|^(seed_everything|seed_all|setup_seed|init_seeds?)$"
)
_OF_ONE_RANK = pattern(r"(?i)rank|time|getpid|urandom|device|initial_seed")


def _last_name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _is_of_one_rank(seed: ast.expr) -> bool:
    """Whether a seed is computed from something that each rank has for itself, or from a name that may hold it."""
    names = {_last_name(n) for n in ast.walk(seed) if isinstance(n, (ast.Name, ast.Attribute))}
    return any(_OF_ONE_RANK.search(name) for name in names)


def is_configured_as_none(node: ast.expr, module: Module) -> bool:
    """Whether a name that is also assigned None, or a named field, is None depends on the configuration, not on the data.

    Prevents a false alarm: `if outputs.loss is not None:` around a backward pass would be a branch on the rank's own data.
    """
    if _is_field(node):
        return True
    bound = module.names.bindings(node.id, module.index.scope(node)) if isinstance(node, ast.Name) else None
    values = [b.value for b in bound[1] if b.value is not None] if bound is not None else []
    results = [e for v in values for e in ((v.body, v.orelse) if isinstance(v, ast.IfExp) else (v,))]
    return any((isinstance(e, ast.Constant) and e.value is None) or _is_field(e) for e in results)


def _is_field(node: ast.expr) -> bool:
    """`result["loss"]`, `result.loss`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    return isinstance(node, ast.Attribute)


def ends_with_input(test: ast.expr) -> bool:
    """`while batch is not None:` and `while batch:` end when the input ends, after as many iterations on all ranks.

    Prevents a false alarm: the loop over a prefetcher would be one whose length the data of the rank decides.
    """
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
    return isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr))


SAME_ON_ALL_RANKS = frozenset(("isinstance", "hasattr"))
"""Tests of an object's type or attributes have the same result on all ranks, whatever the object contains.

Prevents a false alarm: `if isinstance(batch, dict):` around a collective would be a branch on the rank's own data.
"""


def has_same_fields(container: object) -> bool:
    """A batch or a result has the same named fields on all ranks, whatever they contain.

    Prevents a false alarm: `if "labels" in batch:` around a collective would be a branch on the rank's own data.
    """
    return container is Unknown.DATA


def are_sizes(nodes: list[ast.expr]) -> bool:
    """Sizes of batches compare equally on all ranks: a batch is complete on all of them or on none.

    Prevents a false alarm: `if x.shape[0] != y.shape[0]: continue` before a collective would be a branch on the rank's own data.
    """
    return all(_is_size(node) for node in nodes)


def _is_size(node: ast.expr) -> bool:
    """`len(batch)`, `batch.shape[0]`, `batch.size(0)`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    func = node.func if isinstance(node, ast.Call) else None
    return (isinstance(func, ast.Name) and func.id == "len") or (
        isinstance(func, ast.Attribute) and func.attr == "size"
    )
