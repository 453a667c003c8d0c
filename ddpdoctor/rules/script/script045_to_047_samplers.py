"""SCRIPT045 to SCRIPT047: samplers, told the epoch or not, beside shuffle, or over what has no length."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import before, code, point, without_argument
from ddpdoctor.rules.script.script044_048_data_loading import epochs, is_evaluation
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, last_value, spread, value
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules


@cause("SCRIPT045", "sampler-epoch-not-set", Severity.WARNING)
def sampler_epoch_not_set(script: Script) -> Iterator[Finding]:
    """The sampler uses the same order in every epoch.

    ## Why it matters
    DistributedSampler shuffles with seed + epoch, and the epoch stays 0 until it is told: every epoch sees the data in
    the same order, which costs convergence and shows nowhere.

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
                or is_evaluation(module, call)
            ):
                continue
            loop = epochs(module)
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


@cause(
    "SCRIPT046",
    "shuffle-with-sampler",
    Severity.ERROR,
    signatures=(r"sampler option is mutually exclusive with shuffle",),
)
def shuffle_with_sampler(script: Script) -> Iterator[Finding]:
    """A DataLoader has both shuffle and a sampler.

    ## Why it matters
    `ValueError: sampler option is mutually exclusive with shuffle`, when the loader is made.

    ## Fix
    Drop shuffle=True: DistributedSampler shuffles by itself.
    """
    for module in modules(script):
        for call in module.calls("DataLoader"):
            options = spread(module, call)
            shuffle = argument(call, 2, "shuffle") or options.get("shuffle")
            sampler = argument(call, 3, "sampler") or options.get("sampler")
            if shuffle is None or sampler is None or value(module, shuffle) is not True:
                continue
            made = each_rank(module, sampler)
            if all(isinstance(m, CallResult) and m.name == "DistributedSampler" for m in made) or _is_sampler(
                module, sampler
            ):
                yield point(
                    module,
                    call,
                    "shuffle=True beside a sampler is a ValueError (mutually exclusive); expected the sampler alone",
                    "no shuffle",
                    edits=without_argument(module, call, shuffle) if not options else (),
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


@cause(
    "SCRIPT047",
    "sampler-on-iterable-dataset",
    Severity.ERROR,
)
def sampler_on_iterable_dataset(script: Script) -> Iterator[Finding]:
    """A DistributedSampler is given an IterableDataset.

    ## Why it matters
    `TypeError: object of type '…' has no len()`: an IterableDataset has no length and no indices to divide. Without the
    sampler every rank reads all of it.

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
