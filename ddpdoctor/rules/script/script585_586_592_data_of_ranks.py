"""SCRIPT585, SCRIPT586 and SCRIPT592: which part of the data each rank reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, dist_of, point, replace, with_keyword
from ddpdoctor.rules.script.script_questions import (
    LOCAL_RANKS,
    RANKS,
    argument,
    each_rank,
    has_more,
    is_test,
    names_in,
    start_of,
)
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_SHUFFLES = {"random.shuffle": "random.seed", "numpy.random.shuffle": "numpy.random.seed"}
_SEEDS = ("seed", "set_state", "setstate")


@cause("SCRIPT585", "sampler-rank-is-local-rank", Severity.ERROR)
@with_histories(MistakeKind.SAMPLER_OF_NODE)
def sampler_rank_is_local_rank(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """A DistributedSampler gets the local rank as its rank.

    ## Why it matters
    On several nodes the same part of the data is read on each node, and the other parts are never read. There is no
    error, and on one node it works.

    ## Fix
    Leave rank and num_replicas out, or pass `rank=dist.get_rank()`.

    ## Example
        # before
        sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=local_rank)

        # after
        sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank())
    """
    for module in modules(script):
        start = start_of(module, launch)
        if module.spawns or (start is not None and start.nodes == 1):
            continue
        for call in module.calls("DistributedSampler"):
            rank, replicas = argument(call, 2, "rank"), argument(call, 1, "num_replicas")
            if rank is None or has_more(call) or each_rank(module, rank) != LOCAL_RANKS:
                continue
            counts = each_rank(module, replicas) if replicas is not None else [TWO_NODES[0].job.world_size]
            if set(map(repr, counts)) == {repr(TWO_NODES[0].job.world_size)}:
                yield point(
                    module,
                    rank,
                    f"rank={code(module, rank, 40)} is the local rank, but num_replicas counts all nodes",
                    "the global rank",
                    label="each node reads the same part",
                    edits=(replace(module, rank, f"{dist_of(module)}.get_rank()"),),
                ).if_certain(start is not None and start.nodes is not None)


@cause("SCRIPT586", "data-order-differs-by-rank", Severity.ERROR)
@with_histories(
    MistakeKind.SPLIT_DIFFERS, MistakeKind.ORDER_DIFFERS, MistakeKind.HASH_OF_TEXT, MistakeKind.SAMPLER_SEED_DIFFERS
)
def data_order_differs_by_rank(script: Script) -> Iterator[Finding]:
    """Each rank shuffles or splits the data in its own order before it takes its part.

    ## Why it matters
    The parts overlap: some samples are read by several ranks and others by none, and samples of the validation set are
    trained on by another rank. There is no error.

    ## Fix
    Use the same seed on all ranks for what decides the order: `random.Random(seed).shuffle(files)`.

    ## Example
        # before
        random.shuffle(files)
        own = files[rank::world_size]

        # after
        random.Random(0).shuffle(files)
        own = files[rank::world_size]

    ## Source
    PyTorch documentation of DistributedSampler ("this number should be identical across all processes").
    """
    for module in modules(script):
        if is_test(module):
            continue
        yield from _sampler_seeds(module)
        yield from _splits(module)
        yield from _shuffles(module)


def _sampler_seeds(module: Module) -> Iterator[Finding]:
    for call in module.calls("DistributedSampler"):
        seed = argument(call, 4, "seed")
        if seed is not None and _differs(module, seed):
            yield point(
                module,
                seed,
                f"seed={code(module, seed, 50)} differs between the ranks of one sampler",
                "the same seed on all ranks",
                label="the parts of the ranks overlap",
            )


def _differs(module: Module, node: ast.expr) -> bool:
    """Whether a value differs between ranks; a clock counts, unless the value is broadcast."""
    values = each_rank(module, node, trusting=True)
    known = [v for v in values if not isinstance(v, Unknown)]
    return Unknown.VARIES in values or (len(known) == len(values) and any(v != known[0] for v in known))


def _splits(module: Module) -> Iterator[Finding]:
    """random_split with the generator that a seed of each rank has set."""
    seeds = [c for c in module.calls("torch.manual_seed") if c.args]
    for call in module.calls("torch.utils.data.random_split"):
        earlier = [s for s in seeds if s.lineno < call.lineno and _same_function(module, s, call)]
        last = max(earlier, key=lambda s: s.lineno, default=None)
        if last is None or argument(call, 2, "generator") is not None or not _differs(module, last.args[0]):
            continue
        yield point(
            module,
            call,
            f"random_split() uses a seed that differs between ranks (line {last.lineno})",
            "a generator with the same seed on all ranks",
            label="each rank gets a different split",
            fix="Pass `generator=torch.Generator().manual_seed(0)`.",
            edits=_seeded(module, call),
        )


def _seeded(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    if "torch" not in module.index.scopes[module.tree].names:
        return ()
    return (with_keyword(module, call, "generator=torch.Generator().manual_seed(0)"),)


def _same_function(module: Module, one: ast.AST, other: ast.AST) -> bool:
    return module.index.function_of(one) is module.index.function_of(other)


def _shuffles(module: Module) -> Iterator[Finding]:
    """`random.shuffle(files)` without a seed, followed by `files[rank::size]`."""
    is_seeded = any(
        word in getattr(c.func, "attr", getattr(c.func, "id", "")).lower()
        for c in module.index.calls
        for word in _SEEDS
    )
    for name in _SHUFFLES:
        for call in module.calls(name):
            items = argument(call, 0, "x")
            if not isinstance(items, ast.Name) or is_seeded or not _is_divided(module, call, items.id):
                continue
            yield point(
                module,
                call,
                f"each rank shuffles {items.id} in its own order, then takes its part",
                "the same seed on all ranks",
                label="no common seed: the parts overlap",
                edits=_with_seed(module, call, name),
            )


def _with_seed(module: Module, call: ast.Call, name: str) -> tuple[Edit, ...]:
    func = call.func
    is_plain = name == "random.shuffle" and isinstance(func, ast.Attribute)
    return (replace(module, func.value, f"{code(module, func.value)}.Random(0)"),) if is_plain else ()  # type: ignore[attr-defined]


def _is_divided(module: Module, call: ast.Call, name: str) -> bool:
    """Whether a slice by rank takes a part of the items later in the same function."""
    function = module.index.function_of(call)
    for node in inner(function) if function is not None else inner(module.tree):
        part = node.slice if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) else None
        is_own = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
        if part is None or not is_own or part.step is None or part.lower is None or part.lower.lineno < call.lineno:
            continue
        if each_rank(module, part.lower, trusting=True) == RANKS:
            return True
    return False


@cause("SCRIPT592", "tensor-parallel-data-differs", Severity.ERROR)
@with_histories(MistakeKind.SAMPLER_OF_TENSOR_PEERS)
def tensor_parallel_data_differs(script: Script) -> Iterator[Finding]:
    """The ranks of one tensor-parallel group read different batches.

    ## Why it matters
    Each rank computes a part of the same layers. With different inputs the partial results of different batches are
    added up, and the model learns from noise without any error.

    ## Fix
    Divide the data by the data-parallel dimension of the mesh only: `num_replicas=mesh["dp"].size()` and its rank.

    ## Example
        # before
        parallelize_module(model, mesh["tp"], plan)
        sampler = DistributedSampler(dataset)

        # after
        parallelize_module(model, mesh["tp"], plan)
        sampler = DistributedSampler(
            dataset, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()
        )

    ## Source
    PyTorch tutorial "Large Scale Transformer model training with Tensor Parallel".
    """
    for module in modules(script):
        if not module.calls("dist.tensor.parallel.parallelize_module") or is_test(module):
            continue
        for call in module.calls("DistributedSampler"):
            rank, replicas = argument(call, 2, "rank"), argument(call, 1, "num_replicas")
            if has_more(call) or (rank is not None and each_rank(module, rank, trusting=True) != RANKS):
                continue
            if replicas is not None and "get_world_size" not in names_in(replicas):
                continue
            yield point(
                module,
                call,
                "DistributedSampler gives each rank of a tensor-parallel group different data",
                "num_replicas and rank of the data-parallel dimension",
                label="it divides by all ranks",
            )


@sampler_rank_is_local_rank.look
def shard_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Samplers of several ranks that take one shard."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_SHARD,
        lambda o, who: f"{who} read shard {o.values['shard']} of {o.values['replicas']}",
        label="several ranks read one shard",
        expected="the global rank",
    )


@data_order_differs_by_rank.look
def split_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """random_split gives a different split on each rank."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SPLIT_DIFFERS,
        lambda o, who: "random_split gives a different split on each rank",
        label="the splits of the ranks overlap",
        expected="one seed for all ranks",
    )


@data_order_differs_by_rank.look
def order_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Samplers that divide data in another order on each rank."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.ORDERS_DIFFER,
        lambda o, who: f"the sampler has a different seed on each rank: {o.values['values']}",
        label="some samples are read twice, others never",
        expected="one seed for all ranks",
    )


@tensor_parallel_data_differs.look
def batches_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ranks with parts of one model that read other samples."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.GROUP_DATA_DIFFERS,
        lambda o, who: f"ranks {o.values['group']} hold parts of one model and train on different samples",
        label="a sampler over all ranks",
        expected="the data-parallel rank and size",
    )
