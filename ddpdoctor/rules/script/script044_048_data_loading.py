"""SCRIPT044 and SCRIPT048: how the data is divided among the ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.late_pattern import pattern
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import before, code, point, replace, with_keyword
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, is_alone, is_test, names_in, value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.syntax.classes import only_assignment
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_EPOCH = pattern(r"(?i)ep")
_LOADER = pattern(r"(?i)loader|\bdl\b|_dl\b")
_EVALUATION = pattern(r"(?i)(^|[^a-z])(val|valid|validation|test|eval|evaluation|dev|predict|infer|inference)")
_SHARDED = pattern(r"(?i)rank|shard|split|world|num_replicas|node|worker|distributed|iterable|stream|webdataset|wds")
_DRAWN = pattern(r"\b(torch|np|numpy|random)\.(random\.)?(rand|randn|randint|random)\b")
REDUCING = ("dist.all_reduce", "dist.all_gather", "dist.gather", "dist.reduce")


def _name_around(module: Module, call: ast.Call) -> str:
    """The name of a call's result, its first argument, and its function: to distinguish training from evaluation."""
    statement = module.index.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    function = module.index.function_of(call)
    return " ".join(
        [
            *(ast.unparse(t) for t in targets),
            *(ast.unparse(a) for a in call.args[:1]),
            function.name if function else "",
        ]
    )


def is_evaluation(module: Module, call: ast.Call) -> bool:
    return bool(_EVALUATION.search(_name_around(module, call).replace("_", " ")))


@cause("SCRIPT044", "distributed-sampler-missing", Severity.ERROR)
@with_histories(MistakeKind.SAMPLER_UNUSED, MistakeKind.SAMPLER_DRAWS_ALIKE)
def distributed_sampler_missing(script: Script) -> Iterator[Finding]:
    """Every rank reads all the data.

    ## Why it matters
    There is no error: N GPUs do the same work N times, and an epoch takes as long as on one GPU. The effective batch
    contains each sample N times.

    ## Fix
    Pass `sampler=DistributedSampler(dataset)` to the DataLoader, without `shuffle=True`.

    ## Example
        # before
        loader = DataLoader(dataset, batch_size=32, shuffle=True)

        # after
        loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    """
    for module in modules(script):
        if not module.calls("DDP") or module.frameworks or is_alone(module) or _shards_itself(module):
            continue
        for call in module.calls("DataLoader"):
            given = {k.arg for k in call.keywords}
            if given & {"sampler", "batch_sampler", None} or len(call.args) > 3 or is_evaluation(module, call):
                continue
            if in_rank_branch(module, call) or not _is_plain(module, call) or not _trains(module):
                continue
            yield point(
                module,
                call,
                "DataLoader without DistributedSampler: every rank reads the whole dataset",
                "sampler=DistributedSampler(dataset)",
                label="no sampler divides the data",
                edits=_shared_out(module, call),
            )


def _shared_out(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Add the sampler, and set_epoch where there is a loop over epochs."""
    sampled, epoch_set = _sampled(module, call), _epoch_set(module)
    return (
        (*sampled, *epoch_set)
        if sampled and (epoch_set or epochs(module) is None or "set_epoch" in module.text)
        else ()
    )


def _sampled(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    dataset = argument(call, 0, "dataset")
    if dataset is None or "torch" not in module.index.scopes[module.tree].names:
        return ()
    sampler = f"sampler=torch.utils.data.DistributedSampler({code(module, dataset, 200)})"
    shuffle = argument(call, 2, "shuffle")
    if shuffle is None:
        return (with_keyword(module, call, sampler),)
    keyword = next((k for k in call.keywords if k.arg == "shuffle"), shuffle)
    return (
        (replace(module, keyword, sampler),)
        if len(call.args) <= 3 and call.args[-1:] != [shuffle]
        else (
            replace(module, shuffle, "shuffle=False" if call.keywords else f"{sampler}"),
            *((with_keyword(module, call, sampler),) if call.keywords else ()),
        )
    )


def _epoch_set(module: Module) -> tuple[Edit, ...]:
    """Set the epoch of the new sampler in the loop over epochs, through the only loader that is read in the loop."""
    loop = epochs(module)
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return ()
    read = [n.iter for n in ast.walk(loop) if isinstance(n, ast.For) and n is not loop]
    loaders = {ast.unparse(r.args[0] if isinstance(r, ast.Call) and r.args else r) for r in read}
    names = {text for text in loaders if text.replace(".", "_").isidentifier() and not _EVALUATION.search(text)}
    text = f"{names.pop()}.sampler.set_epoch({loop.target.id})" if len(names) == 1 else ""
    return (before(module, loop.body[0], text),) if text else ()


def _trains(module: Module) -> bool:
    return bool(module.method_calls.get("backward"))


def _shards_itself(module: Module) -> bool:
    """Whether anything may divide the data: a sampler of any kind, slices by rank, datasets that stream."""
    names = (
        "DistributedSampler",
        "split_dataset_by_node",
        "IterableDataset",
        "webdataset",
        "shard(",
        "StreamingDataset",
        "Sampler(",
    )
    return any(name in module.text for name in names)


def _is_plain(module: Module, call: ast.Call) -> bool:
    """Whether the dataset is created in this file without any use of the rank, also through the parameter of a function."""
    dataset = argument(call, 0, "dataset")
    makers = list(_makers(module, dataset)) if dataset is not None else [None]
    texts = [ast.unparse(made) for made in makers if made is not None]
    if len(texts) < len(makers) or any(_SHARDED.search(text) for text in texts):
        return False
    return not (any(_DRAWN.search(text) for text in texts) and _is_seeded_by_rank(module))


def _is_seeded_by_rank(module: Module) -> bool:
    """Whether each rank draws its own random data, which divides it."""
    seeds = [c.args[0] for c in module.calls("torch.manual_seed", "random.seed", "numpy.random.seed") if c.args]
    values = [each_rank(module, seed, trusting=True) for seed in seeds]
    return any(Unknown.VARIES in f or any(v != f[0] for v in f) for f in values)


def _makers(module: Module, node: ast.expr, depth: int = 0) -> Iterator[ast.expr | None]:
    """The expressions that create what a name holds, through parameters and the calls that pass them; None: unknown."""
    if isinstance(node, ast.Attribute):
        made = only_assignment(module, node)
        yield made
        if made is not None and depth < 4:
            yield from _makers(module, made, depth + 1)
        return
    yield node
    if not isinstance(node, ast.Name):
        return
    bound = module.names.bindings(node.id, module.index.scope(node))
    for binding in bound[1] if bound is not None and depth < 4 else ():
        if binding.how is not Bound.PARAMETER:
            yield binding.value
            if isinstance(binding.value, ast.Name):
                yield from _makers(module, binding.value, depth + 1)
            continue
        function = bound[0].function if bound is not None else None
        calls = module.callers.get(function, []) if function is not None else []
        is_method = function is not None and isinstance(module.index.parents.get(function), ast.ClassDef)
        given = [argument_of(c, function, node.id, is_method) for c in calls] if function is not None else []
        for passed in given or [None]:
            if passed is None:
                yield None
            else:
                yield from _makers(module, passed, depth + 1)
    if bound is None or depth >= 4:
        yield None


@cause("SCRIPT048", "sampler-pads-evaluation", Severity.NOTE)
def sampler_pads_evaluation(script: Script) -> Iterator[Finding]:
    """The sampler repeats samples to fill the last batch of an evaluation.

    ## Why it matters
    If the size of the dataset is not a multiple of the world size, some samples count twice in the metric.

    ## Fix
    Gather the predictions and cut them: `torch.cat(parts)[: len(dataset)]`.

    Or weight by the real count. `--diff` does not correct this: only the author knows the metric.

    ## Example
        # before
        sampler = DistributedSampler(val_set, shuffle=False)
        correct = evaluate(ddp, DataLoader(val_set, sampler=sampler))
        dist.all_reduce(correct)
        accuracy = correct / (len(sampler) * world_size)

        # after
        sampler = DistributedSampler(val_set, shuffle=False)
        hits = evaluate(ddp, DataLoader(val_set, sampler=sampler))  # one entry per sample
        parts = [torch.zeros_like(hits) for _ in range(world_size)]
        dist.all_gather(parts, hits)
        accuracy = torch.stack(parts, 1).flatten()[: len(val_set)].float().mean()
    """
    for module in modules(script):
        if module.frameworks or is_test(module) or not module.calls(*REDUCING):
            continue
        for call in module.calls("DistributedSampler"):
            flags = argument(call, None, "drop_last")
            if flags is not None or has_more(call) or not is_evaluation(module, call):
                continue
            dataset = argument(call, 0, "dataset")
            if dataset is not None and f"[:len({ast.unparse(dataset)})]" not in module.text.replace(" ", ""):
                yield point(
                    module,
                    call,
                    "DistributedSampler pads the evaluation: some samples may count twice",
                    "results cut to len(dataset)",
                    label="cut the results to len(dataset)",
                )


def epochs(module: Module) -> ast.For | ast.While | None:
    """A loop over epochs: named so, or one that iterates over a loader several times."""
    named = _named_epochs(module)
    if named is not None or not _trains(module):
        return named
    return next((n for n in module.index.parents if isinstance(n, ast.For) and _repeats(module, n)), None)


def _repeats(module: Module, loop: ast.For) -> bool:
    """Whether it is `for _ in range(n):` around a loop over a loader, in it or in a function of this file that it calls."""
    counted = isinstance(loop.iter, ast.Call) and module.names.of(loop.iter.func) == "range"
    iterations = value(module, loop.iter)
    if not counted or (isinstance(iterations, list) and len(iterations) < 2):
        return False
    nodes = list(inner(loop))
    targets = [t for n in nodes if isinstance(n, ast.Call) and (t := module.target(n)) is not None]
    nodes += [n for t in targets if t.module is module for n in inner(t.function)]
    return any(isinstance(n, ast.For) and n is not loop and _runs_over_loader(n) for n in nodes)


def _runs_over_loader(loop: ast.For) -> bool:
    text = ast.unparse(loop.iter)
    return bool(_LOADER.search(text)) and not _EVALUATION.search(text.replace("_", " "))


def _named_epochs(module: Module) -> ast.For | ast.While | None:
    for node in module.index.parents:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _EPOCH.search(node.target.id):
            single = value(module, node.iter)
            if isinstance(single, list) and len(single) < 2:
                continue
            return node
        if isinstance(node, ast.While) and any(_EPOCH.search(name) for name in names_in(node.test)):
            return node
    return None


@distributed_sampler_missing.look
def same_samples(rehearsal: Rehearsal) -> Iterator[Finding]:
    """All ranks read the same samples."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_DATA,
        lambda o, who: f"{who} read the same {o.values.get('size', 'streamed')} samples ({o.values['sampler']})",
        label="no sampler divides the data between ranks",
        expected="sampler=DistributedSampler(dataset)",
    )
