"""SCRIPT044 to SCRIPT048: what each rank reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.facts.script.index import Bound
from ddpdoctor.facts.script.module import Module, modules
from ddpdoctor.facts.script.parameters import argument_of
from ddpdoctor.facts.script.world import Made, Unknown
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.script.pointing import before, code, point, replace, with_keyword, without_argument
from ddpdoctor.rules.script.situation import (
    argument,
    each_rank,
    has_more,
    in_rank_branch,
    is_alone,
    is_test,
    last_value,
    names_in,
    value,
)

_EVALUATION = re.compile(r"(?i)(^|[^a-z])(val|valid|validation|test|eval|evaluation|dev|predict|infer|inference)")
_EPOCH = re.compile(r"(?i)ep")
_SHARDED = re.compile(r"(?i)rank|shard|split|world|num_replicas|node|worker|distributed|iterable|stream|webdataset|wds")
_DRAWN = re.compile(r"\b(torch|np|numpy|random)\.(random\.)?(rand|randn|randint|random)\b")
REDUCING = ("dist.all_reduce", "dist.all_gather", "dist.gather", "dist.reduce")


def _name_around(module: Module, call: ast.Call) -> str:
    """The name that a call's result is given to, and what it is given: for telling training from evaluation."""
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


def _is_evaluation(module: Module, call: ast.Call) -> bool:
    return bool(_EVALUATION.search(_name_around(module, call).replace("_", " ")))


@rule("SCRIPT044", "distributed-sampler-missing", Severity.ERROR)
def missing(script: Script) -> Iterator[Finding]:
    """Every rank reads all the data.

    ## Why it matters
    No error: N GPUs do the same work N times, the epoch is not shorter than on one, and the effective batch holds
    each sample N
    times.

    ## Fix
    `DataLoader(dataset, sampler=DistributedSampler(dataset), ...)`, without shuffle=True.
    """
    for module in modules(script):
        if not module.calls("DDP") or module.frameworks or is_alone(module) or _shards_itself(module):
            continue
        for call in module.calls("DataLoader"):
            given = {k.arg for k in call.keywords}
            if given & {"sampler", "batch_sampler", None} or len(call.args) > 3 or _is_evaluation(module, call):
                continue
            if in_rank_branch(module, call) or not _is_plain(module, call) or not _trains(module):
                continue
            yield point(
                module,
                call,
                "every rank reads the whole dataset through this DataLoader: nothing divides it among the ranks; "
                "expected "
                "sampler=DistributedSampler(dataset)",
                "sampler=DistributedSampler(dataset)",
                edits=(*(found := _sampled(module, call)), *(_epoch_told(module) if found else ())),
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


def _epoch_told(module: Module) -> tuple[Edit, ...]:
    """The new sampler is told the epoch in the loop over epochs, through the only loader that is read in it."""
    loop = _epochs(module)
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return ()
    read = [n.iter for n in ast.walk(loop) if isinstance(n, ast.For) and n is not loop]
    loaders = {ast.unparse(r.args[0] if isinstance(r, ast.Call) and r.args else r) for r in read}
    names = {text for text in loaders if text.replace(".", "_").isidentifier() and not _EVALUATION.search(text)}
    told = f"{names.pop()}.sampler.set_epoch({loop.target.id})" if len(names) == 1 else ""
    return (before(module, loop.body[0], told),) if told else ()


def _trains(module: Module) -> bool:
    return bool(module.method_calls.get("backward"))


def _shards_itself(module: Module) -> bool:
    """Anything that may divide the data: a sampler of any kind, slices by rank, datasets that stream."""
    words = (
        "DistributedSampler",
        "split_dataset_by_node",
        "IterableDataset",
        "webdataset",
        "shard(",
        "StreamingDataset",
        "Sampler(",
    )
    return any(word in module.text for word in words)


def _is_plain(module: Module, call: ast.Call) -> bool:
    """The dataset is made in this file without a word of ranks, also where a function is given it."""
    dataset = argument(call, 0, "dataset")
    makers = list(_makers(module, dataset)) if dataset is not None else [None]
    texts = [ast.unparse(made) for made in makers if made is not None]
    if len(texts) < len(makers) or any(_SHARDED.search(text) for text in texts):
        return False
    return not (any(_DRAWN.search(text) for text in texts) and _is_seeded_by_rank(module))


def _is_seeded_by_rank(module: Module) -> bool:
    """Random data that each rank draws for itself is its own share."""
    seeds = [c.args[0] for c in module.calls("torch.manual_seed", "random.seed", "numpy.random.seed") if c.args]
    found = [each_rank(module, seed, trusting=True) for seed in seeds]
    return any(Unknown.VARIES in f or any(v != f[0] for v in f) for f in found)


def _makers(module: Module, node: ast.expr, depth: int = 0) -> Iterator[ast.expr | None]:
    """The expressions that make what a name holds, through parameters and the calls that fill them; None: unknown."""
    yield node if not isinstance(node, ast.Attribute) else None
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
        for each in given or [None]:
            if each is None:
                yield None
            else:
                yield from _makers(module, each, depth + 1)
    if bound is None or depth >= 4:
        yield None


@rule("SCRIPT045", "sampler-epoch-not-set", Severity.WARNING)
def epoch(script: Script) -> Iterator[Finding]:
    """The sampler uses the same order in every epoch.

    ## Why it matters
    DistributedSampler shuffles with seed + epoch, and the epoch stays 0 until it is told: every epoch sees the data
    in the same
    order, which costs convergence and shows nowhere.

    ## Fix
    `sampler.set_epoch(epoch)` at the start of each epoch.
    """
    for module in modules(script):
        if "set_epoch" in module.text or module.frameworks:
            continue
        for call in module.calls("DistributedSampler"):
            shuffle = argument(call, 3, "shuffle")
            if (
                has_more(call)
                or (shuffle is not None and value(module, shuffle) is not True)
                or _is_evaluation(module, call)
            ):
                continue
            loop = _epochs(module)
            name = _sampler_name(module, call)
            if loop is not None:
                yield point(
                    module,
                    call,
                    f"nothing tells this sampler the epoch, so that the loop of line {loop.lineno} sees one order in "
                    "every epoch; "
                    "expected set_epoch at its start",
                    f"{name}.set_epoch(epoch)",
                    edits=_told(module, loop, name),
                )


def _sampler_name(module: Module, call: ast.Call) -> str:
    statement = module.index.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        return ast.unparse(statement.targets[0])
    loader = module.index.parents.get(module.index.parents[call])
    if not isinstance(loader, ast.Call) or module.names.of(loader.func) != "DataLoader":
        return "sampler"
    makers = [loader] if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.Return) and statement.value is loader and (function := module.index.function_of(call)):
        makers = module.callers.get(function, [])
    kept = [p.targets[0] for m in makers if isinstance(p := module.index.parents[m], ast.Assign)]
    return f"{ast.unparse(kept[0])}.sampler" if len(makers) == len(kept) == 1 else "sampler"


def _told(module: Module, loop: ast.For | ast.While, name: str) -> tuple[Edit, ...]:
    counter = (
        loop.target if isinstance(loop, ast.For) else next(n for n in ast.walk(loop.test) if isinstance(n, ast.Name))
    )
    if not isinstance(counter, ast.Name) or (name == "sampler" and "sampler =" not in module.text):
        return ()
    function = module.index.function_of(loop)
    root = name.partition(".")[0]
    local = root in {n.id for n in ast.walk(function or module.tree) if isinstance(n, ast.Name)}
    known = root == "self" or local
    return (before(module, loop.body[0], f"{name}.set_epoch({counter.id})"),) if known else ()


def _epochs(module: Module) -> ast.For | ast.While | None:
    """A loop over epochs."""
    for node in module.index.parents:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _EPOCH.search(node.target.id):
            single = value(module, node.iter)
            if isinstance(single, list) and len(single) < 2:
                continue
            return node
        if isinstance(node, ast.While) and any(_EPOCH.search(name) for name in names_in(node.test)):
            return node
    return None


@rule(
    "SCRIPT046",
    "shuffle-with-sampler",
    Severity.ERROR,
    signatures=(r"sampler option is mutually exclusive with shuffle",),
)
def shuffled(script: Script) -> Iterator[Finding]:
    """A DataLoader has both shuffle and a sampler.

    ## Why it matters
    `ValueError: sampler option is mutually exclusive with shuffle`, when the loader is made.

    ## Fix
    Drop shuffle=True: DistributedSampler shuffles by itself.
    """
    for module in modules(script):
        for call in module.calls("DataLoader"):
            shuffle = argument(call, 2, "shuffle")
            sampler = argument(call, 3, "sampler")
            if shuffle is None or sampler is None or value(module, shuffle) is not True:
                continue
            made = each_rank(module, sampler)
            if all(isinstance(m, Made) and m.name == "DistributedSampler" for m in made) or _is_sampler(
                module, sampler
            ):
                yield point(
                    module,
                    call,
                    "shuffle=True beside a sampler is a ValueError (mutually exclusive); expected the sampler alone",
                    "no shuffle",
                    edits=without_argument(module, call, shuffle),
                )


def _is_sampler(module: Module, node: ast.expr) -> bool:
    call = node
    if isinstance(node, ast.Name):
        bound = module.names.bindings(node.id, module.index.scope(node))
        if bound is None or len(bound[1]) != 1 or bound[1][0].how is not Bound.VALUE or bound[1][0].value is None:
            return False
        call = bound[1][0].value
    name = module.names.of(call.func) if isinstance(call, ast.Call) else None
    return name is not None and name.startswith("torch.utils.data.") and name.endswith("Sampler")


@rule(
    "SCRIPT047",
    "sampler-on-iterable-dataset",
    Severity.ERROR,
    signatures=(r"DistributedSampler[^\n]*has no len\(\)",),
)
def iterable(script: Script) -> Iterator[Finding]:
    """A DistributedSampler is given an IterableDataset.

    ## Why it matters
    `TypeError: object of type '…' has no len()`: an IterableDataset has no length and no indices to divide. Without
    the sampler
    every rank reads all of it.

    ## Fix
    Divide inside the dataset, by rank and by worker: `itertools.islice(items, rank, None, world_size)`. `--diff` leaves
    this to the author, who knows how the items are read.
    """
    for module in modules(script):
        for call in module.calls("DistributedSampler"):
            dataset = argument(call, 0, "dataset")
            owner = module.class_of_value(dataset) if dataset is not None else None
            if dataset is not None and _is_stream(module, dataset):
                yield _unsized(module, call, code(module, dataset))
            if (
                owner is None
                or not module.is_a(owner, "IterableDataset")
                or module.method(owner, "__len__") is not None
            ):
                continue
            yield _unsized(module, call, owner.name)


def _unsized(module: Module, call: ast.Call, name: str) -> Finding:
    return point(
        module,
        call,
        f"{name} is an IterableDataset: it has no len(), so that DistributedSampler raises a TypeError; expected the "
        "dataset to divide its items by rank",
        "islice(items, rank, None, world_size) in __iter__",
        fix="No sampler; in the dataset: for item in itertools.islice(items, rank, None, world_size): yield item",
    )


def _is_stream(module: Module, node: ast.expr) -> bool:
    """What `load_dataset(…, streaming=True)` gives."""
    made = last_value(module, node)
    name = module.names.of(made.func) if isinstance(made, ast.Call) else None
    flag = argument(made, None, "streaming") if isinstance(made, ast.Call) else None
    return name == "datasets.load_dataset" and value(module, flag) is True


@rule("SCRIPT048", "sampler-pads-evaluation", Severity.NOTE)
def pads(script: Script) -> Iterator[Finding]:
    """The sampler repeats samples to fill the last batch of an evaluation.

    ## Why it matters
    Where the size of the dataset is no multiple of the world size, some samples count twice in the metric.

    ## Fix
    Gather the predictions and cut them: `torch.cat(parts)[: len(dataset)]`; or weight by the real count. `--diff` leaves
    this to the author, who knows the metric.
    """
    for module in modules(script):
        if module.frameworks or is_test(module) or not module.calls(*REDUCING):
            continue
        for call in module.calls("DistributedSampler"):
            flags = argument(call, None, "drop_last")
            if flags is not None or has_more(call) or not _is_evaluation(module, call):
                continue
            dataset = argument(call, 0, "dataset")
            if dataset is not None and f"[:len({ast.unparse(dataset)})]" not in module.text.replace(" ", ""):
                yield point(
                    module,
                    call,
                    "this sampler repeats samples until all ranks have equally many, and the evaluation counts "
                    "those twice; expected "
                    "the metric to leave them out",
                    "results cut to len(dataset)",
                )
