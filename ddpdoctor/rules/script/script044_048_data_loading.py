"""SCRIPT044 and SCRIPT048: how the data is shared out among the ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import before, code, point, replace, with_keyword
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, is_alone, is_test, names_in, value
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.syntax.classes import only_assignment
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner

_EPOCH = re.compile(r"(?i)ep")
_LOADER = re.compile(r"(?i)loader|\bdl\b|_dl\b")
_EVALUATION = re.compile(r"(?i)(^|[^a-z])(val|valid|validation|test|eval|evaluation|dev|predict|infer|inference)")
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


def is_evaluation(module: Module, call: ast.Call) -> bool:
    return bool(_EVALUATION.search(_name_around(module, call).replace("_", " ")))


@cause("SCRIPT044", "distributed-sampler-missing", Severity.ERROR)
def distributed_sampler_missing(script: Script) -> Iterator[Finding]:
    """Every rank reads all the data.

    ## Why it matters
    No error: N GPUs do the same work N times, the epoch is not shorter than on one, and the effective batch holds each
    sample N times.

    ## Fix
    `DataLoader(dataset, sampler=DistributedSampler(dataset), ...)`, without shuffle=True.
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
                "every rank reads the whole dataset through this DataLoader: nothing divides it among the ranks; "
                "expected "
                "sampler=DistributedSampler(dataset)",
                "sampler=DistributedSampler(dataset)",
                edits=_shared_out(module, call),
            )


def _shared_out(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """The sampler, and the epoch for it where there is a loop over epochs."""
    sampled, told = _sampled(module, call), _epoch_told(module)
    return (*sampled, *told) if sampled and (told or epochs(module) is None or "set_epoch" in module.text) else ()


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
    loop = epochs(module)
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
        for each in given or [None]:
            if each is None:
                yield None
            else:
                yield from _makers(module, each, depth + 1)
    if bound is None or depth >= 4:
        yield None


@cause("SCRIPT048", "sampler-pads-evaluation", Severity.NOTE)
def sampler_pads_evaluation(script: Script) -> Iterator[Finding]:
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
            if flags is not None or has_more(call) or not is_evaluation(module, call):
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


def epochs(module: Module) -> ast.For | ast.While | None:
    """A loop over epochs: named so, or one that trains on a loader again and again."""
    named = _named_epochs(module)
    if named is not None or not _trains(module):
        return named
    return next((n for n in module.index.parents if isinstance(n, ast.For) and _repeats(module, n)), None)


def _repeats(module: Module, loop: ast.For) -> bool:
    """`for _ in range(n):` around a loop over a loader, in it or in a function of this file that it calls."""
    counted = isinstance(loop.iter, ast.Call) and module.names.of(loop.iter.func) == "range"
    turns = value(module, loop.iter)
    if not counted or (isinstance(turns, list) and len(turns) < 2):
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
